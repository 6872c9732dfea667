package palisade_test

// The page of the documentation does what it says, pasted into a new project.

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// debian is where Debian's packages of Go libraries are: golang-github-go-chi-chi-dev and
// golang-github-gin-gonic-gin-dev.
const debian = "/usr/share/gocode"

var (
	named = regexp.MustCompile("(?ms)^```(?:go|toml)\n(?://|#) (\\S+)\n(.*?)^```$")
	block = regexp.MustCompile("(?m)^```(?:go|toml)$")
	shell = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
)

// project is a new one, set up by the first block of the page and with every other block as a
// file of its name.
func project(t *testing.T) (home, policy string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder("PALISADE_DOCS", "../../docs"), "go.md"))
	must(t, err)
	page := string(raw)
	blocks := named.FindAllStringSubmatch(page, -1)
	if len(blocks) < 6 || len(blocks) != len(block.FindAllString(page, -1)) {
		t.Fatal("a block of the page has no name")
	}
	home = t.TempDir()
	here, err := os.Getwd()
	must(t, err)
	must(t, os.Mkdir(filepath.Join(home, "clients"), 0o700))
	must(t, os.Symlink(here, filepath.Join(home, "clients/go")))
	run(t, home, "sh", "-e", "-c", shell.FindStringSubmatch(page)[1])
	for _, each := range blocks {
		name, text := each[1], each[2]
		if name == "policy.toml" {
			policy = text
			continue
		}
		must(t, os.MkdirAll(filepath.Join(home, filepath.Dir(name)), 0o700))
		must(t, os.WriteFile(filepath.Join(home, name), []byte(patient(t, name, text)), 0o600))
	}
	return home, policy
}

// A busy machine may need longer than the default deadline.
func patient(t *testing.T, name, text string) string {
	t.Helper()
	changed := strings.ReplaceAll(text, "palisade.Options{}", "palisade.Options{Deadline: 30e9}")
	if strings.HasSuffix(name, "main.go") && changed == text {
		t.Fatal(name)
	}
	return changed
}

func run(t *testing.T, in string, program string, args ...string) string {
	t.Helper()
	command := exec.Command(program, args...)
	command.Dir = in
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}

// built is a program of the page.
func built(t *testing.T, home, name string) *exec.Cmd {
	t.Helper()
	binary := filepath.Join(home, name+".program")
	run(t, home, "go", "vet", "./"+name)
	run(t, home, "go", "build", "-o", binary, "./"+name)
	return exec.Command(binary)
}

// builtWithDebian is a program of the page that uses packages of Debian. They are for GOPATH.
func builtWithDebian(t *testing.T, home, name, path string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat(filepath.Join(debian, "src", path)); err != nil {
		t.Fatal("Debian: apt-get install golang-github-go-chi-chi-dev golang-github-gin-gonic-gin-dev")
	}
	gopath := t.TempDir()
	source := filepath.Join(gopath, "src/example.com/palisade/clients")
	must(t, os.MkdirAll(source, 0o700))
	here, err := os.Getwd()
	must(t, err)
	must(t, os.Symlink(here, filepath.Join(source, "go")))
	must(t, os.Rename(filepath.Join(home, name), filepath.Join(gopath, "src", name)))
	// With a go.mod beside it GOPATH knows that `chi/v5` is in the folder `chi`.
	must(t, os.WriteFile(filepath.Join(gopath, "src", name, "go.mod"), []byte("module "+name+"\n"), 0o600))
	binary := filepath.Join(home, name+".program")
	build := exec.Command("go", "build", "-o", binary, name)
	build.Env = append(os.Environ(), "GO111MODULE=off", "GOFLAGS=", "GOPATH="+gopath+":"+debian)
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return exec.Command(binary)
}

func TestPageAsk(t *testing.T) {
	home, policy := project(t)
	command := built(t, home, "ask")
	command.Env = append(os.Environ(), "PALISADE="+serve(t, policy))
	if output, err := command.CombinedOutput(); err != nil || string(output) != "allow 200 9\n" {
		t.Fatalf("%v %s", err, output)
	}
}

func TestPageJobs(t *testing.T) {
	home, policy := project(t)
	command := built(t, home, "jobs")
	command.Env = append(os.Environ(), "PALISADE="+serve(t, policy))
	if output, err := command.CombinedOutput(); err != nil || !strings.HasPrefix(string(output), "5 queued, come back in ") {
		t.Fatalf("%v %s", err, output)
	}
}

func TestPageReserveAndSettle(t *testing.T) {
	home, policy := project(t)
	command := built(t, home, "chat")
	command.Env = append(os.Environ(), "PALISADE="+serve(t, policy))
	if output, err := command.CombinedOutput(); err != nil || string(output) != "812\n429 rate_limit_exceeded\n" {
		t.Fatalf("%v %s", err, output)
	}
}

func TestPageTestOfAnApplication(t *testing.T) {
	home, _ := project(t)
	output := run(t, home, "go", "test", "-v", "./login")
	if strings.Count(output, "--- PASS") != 3 {
		t.Fatal(output)
	}
}

func TestPageNetHTTP(t *testing.T) {
	home, policy := project(t)
	at := visit(t, built(t, home, "shop"), policy)
	for job := 0; job < 10; job++ {
		if status, body := at.send("POST", "/jobs", nil); status != 200 {
			t.Fatal(status, body)
		}
	}
	if status, body := at.send("POST", "/jobs", nil); status != 429 {
		t.Fatal(status, body)
	}
}

func TestPageChi(t *testing.T) {
	home, policy := project(t)
	visit(t, builtWithDebian(t, home, "withchi", "github.com/go-chi/chi"), policy)
}

func TestPageGin(t *testing.T) {
	home, policy := project(t)
	visit(t, builtWithDebian(t, home, "withgin", "github.com/gin-gonic/gin"), policy)
}

// place is an application of the page.
type place struct {
	t   *testing.T
	url string
}

// visit starts an application and does what every application of the page must withstand.
func visit(t *testing.T, command *exec.Cmd, policy string) place {
	t.Helper()
	at := place{t, listening(t, command.Path, serve(t, policy))}
	if status, body := at.send("GET", "/reports/2026", nil); status != 200 || body != "2026" {
		t.Fatal(status, body)
	}
	if status, body := at.send("GET", "/reports/2026", nil, "nobody"); status != 403 {
		t.Fatal("n4", status, body)
	}
	if status, body := at.signIn("ann", "correct horse"); status != 200 || body != "welcome" {
		t.Fatal(status, body)
	}
	for _, name := range []string{"", strings.Repeat("n", 600)} {
		if status, body := at.signIn(name, "guess"); status != 400 || !strings.Contains(body, `"field":"account"`) {
			t.Fatal("n3", status, body)
		}
	}
	for _, wanted := range []int{401, 401, 429} {
		if status, body := at.signIn("bob", "guess"); status != wanted {
			t.Fatal(status, body)
		}
	}
	return at
}

// listening starts an application on a free port. Another program may take the port first: then
// the application ends, and another port is tried.
func listening(t *testing.T, program, server string) string {
	t.Helper()
	for tries := 0; tries < 5; tries++ {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address := listener.Addr().String()
		listener.Close()
		_, port, _ := net.SplitHostPort(address)
		command := exec.Command(program)
		command.Env = append(os.Environ(), "PALISADE="+server, "PORT="+port)
		command.Stderr = os.Stderr
		must(t, command.Start())
		ended := make(chan struct{})
		go func() {
			_ = command.Wait()
			close(ended)
		}()
		t.Cleanup(func() {
			_ = command.Process.Kill()
			<-ended
		})
		if answers(address, ended) {
			return "http://" + address
		}
	}
	t.Fatal("the application did not start")
	return ""
}

func answers(address string, ended <-chan struct{}) bool {
	for {
		select {
		case <-ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			return true
		}
	}
}

func (p place) send(method, path string, form url.Values, who ...string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequest(method, p.url+path, strings.NewReader(form.Encode()))
	must(p.t, err)
	if len(who) == 0 {
		request.Header.Set("Authorization", "Bearer demo")
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("X-Device", "d1")
	response, err := http.DefaultClient.Do(request)
	must(p.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(p.t, err)
	return response.StatusCode, string(body)
}

func (p place) signIn(username, password string) (int, string) {
	p.t.Helper()
	return p.send("POST", "/session", url.Values{"username": {username}, "password": {password}})
}
