package palisade_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	palisade "example.com/palisade/clients/go"
)

// patience is far more than a busy machine needs, and far less than what hangs would take.
const patience = 30 * time.Second

// started runs a program until the test ends, and reads its output up to a line.
func started(t *testing.T, command *exec.Cmd, isLast func(line string) bool) string {
	t.Helper()
	input, err := command.StdinPipe()
	must(t, err)
	output, err := command.StdoutPipe()
	must(t, err)
	command.Stderr = os.Stderr
	must(t, command.Start())
	t.Cleanup(func() {
		input.Close()
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines, read := bufio.NewReader(output), ""
	for {
		line, err := lines.ReadString('\n')
		read += line
		if err != nil {
			t.Fatalf("%s ended at its start:\n%s", command.Path, read)
		}
		if isLast(line) {
			// A pipe that nobody empties would hold the program up.
			go func() { _, _ = io.Copy(io.Discard, output) }()
			return read
		}
	}
}

var decisionAPI = regexp.MustCompile(`decision API +(https?://\S+)`)

// serve starts a real Palisade with a policy, and returns its URL.
func serve(t *testing.T, policy string, environment ...string) string {
	t.Helper()
	return serveIn(t, t.TempDir(), policy, environment...)
}

func serveIn(t *testing.T, home, policy string, environment ...string) string {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(home, "palisade.toml"), []byte(policy), 0o600))
	binary := os.Getenv("PALISADE_BIN")
	if binary == "" {
		binary = "palisade"
	}
	command := exec.Command(binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--store", "memory:", "--config", "palisade.toml")
	command.Dir = home
	command.Env = append(environment, "PALISADE_LOG__LEVEL=error")
	banner := started(t, command, func(line string) bool { return line == "ready\n" })
	return decisionAPI.FindStringSubmatch(banner)[1]
}

// folder is one of the repository's, beside the package or where the environment says.
func folder(variable, beside string) string {
	if named := os.Getenv(variable); named != "" {
		return named
	}
	return beside
}

func newClient(t *testing.T, url string, change ...func(*palisade.Options)) *palisade.Client {
	t.Helper()
	options := palisade.Options{Deadline: patience, Log: func(string) {}}
	for _, each := range change {
		each(&options)
	}
	client, err := palisade.New(url, options)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// away is an address where nobody listens: a port that was free a moment ago may be another
// program's by now.
const away = "http://127.0.0.1:1"

// recorder allows everything and remembers what it was asked.
type recorder struct {
	*httptest.Server
	lock  sync.Mutex
	paths []string
	facts []map[string]any
}

func record(t *testing.T, more map[string]any) *recorder {
	t.Helper()
	recorder := &recorder{}
	recorder.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var facts map[string]any
		if err := json.NewDecoder(r.Body).Decode(&facts); err != nil {
			t.Error(err)
		}
		recorder.lock.Lock()
		recorder.paths = append(recorder.paths, r.URL.Path)
		recorder.facts = append(recorder.facts, facts)
		recorder.lock.Unlock()
		answer := map[string]any{"decision": "allow", "status": 200, "request_id": facts["request_id"]}
		for name, value := range more {
			answer[name] = value
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(recorder.Close)
	return recorder
}

// steps are the last segments of what was asked.
func (r *recorder) steps() string {
	r.lock.Lock()
	defer r.lock.Unlock()
	var steps []string
	for _, path := range r.paths {
		steps = append(steps, path[strings.LastIndex(path, "/")+1:])
	}
	return strings.Join(steps, " ")
}
