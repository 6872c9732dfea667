package palisade

import (
	"errors"
	"strings"
	"testing"
)

func proxies(t *testing.T, given ...string) trustedProxies {
	t.Helper()
	found, err := newTrustedProxies(given)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// I-XFF: the first address from the right that is no proxy.
func TestIXFFTheClientsAddress(t *testing.T) {
	trusted := proxies(t, "10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1")
	cases := []struct {
		peer, chain, client string
		believed            bool
	}{
		{"203.0.113.5:1", "-", "203.0.113.5", false},
		{"203.0.113.5:1", "198.51.100.1", "203.0.113.5", false},
		{"203.0.113.5:1", "nonsense", "203.0.113.5", false},
		{"10.0.0.1:1", "-", "10.0.0.1", true},
		{"192.0.2.1:1", "198.51.100.1", "198.51.100.1", true},
		{"10.0.0.1:1", "198.51.100.1", "198.51.100.1", true},
		{"10.0.0.1:1", "1.1.1.1, 198.51.100.1", "198.51.100.1", true},
		{"10.0.0.1:1", "nonsense, 198.51.100.1, 10.0.0.2", "198.51.100.1", true},
		{"10.0.0.1:1", "1.1.1.1|198.51.100.1", "198.51.100.1", true},
		{"10.0.0.1:1", "10.0.0.3, 10.0.0.2", "10.0.0.3", true},
		{"[::ffff:10.0.0.1]:1", "198.51.100.1:4711", "198.51.100.1", true},
		{"10.0.0.1:1", "[2001:db8::1]:443", "2001:db8::1", true},
		{"[2001:db8:ffff::1]:1", "[2001:db8::1]", "2001:db8::1", true},
		{"[fe80::1%eth0]:1", "198.51.100.1", "fe80::1", false},
		{"10.0.0.1:1", "::ffff:198.51.100.1", "198.51.100.1", true},
	}
	for _, each := range cases {
		var chain []string
		if each.chain != "-" {
			chain = strings.Split(each.chain, "|")
		}
		ip, believed, err := trusted.client(each.peer, chain)
		if err != nil || ip != each.client || believed != each.believed {
			t.Errorf("%s %s: %s %v %v", each.peer, each.chain, ip, believed, err)
		}
	}
}

func TestIXFFAChainThatCannotBeReadIsRefused(t *testing.T) {
	chains := []string{"", "unknown", "198.51.100.1, x", "198.51.100.1:99999", "fe80::1%eth0", "[1.1.1.1]", strings.Repeat("1,", 251)}
	for _, chain := range chains {
		var bad *badChainError
		if _, _, err := proxies(t, "10.0.0.0/8").client("10.0.0.1:1", []string{chain}); !errors.As(err, &bad) {
			t.Errorf("%s: %v", chain, err)
		}
	}
}

func TestAUnixSocketIsTrustedOnlyIfItIsNamed(t *testing.T) {
	var wrong *MisconfiguredError
	if _, _, err := proxies(t).client("@", []string{"198.51.100.1"}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "unix") {
		t.Fatal(err)
	}
	if ip, believed, err := proxies(t, "unix").client("@", []string{"198.51.100.1"}); ip != "198.51.100.1" || !believed || err != nil {
		t.Fatal(ip, err)
	}
	var bad *badChainError
	if _, _, err := proxies(t, "unix").client("", nil); !errors.As(err, &bad) {
		t.Fatal(err)
	}
}

func TestAWrongNetworkIsRefused(t *testing.T) {
	for _, wrong := range []string{"10.0.0.0/99", "10.0.0", "", "localhost"} {
		if _, err := newTrustedProxies([]string{wrong}); err == nil || strings.Contains(err.Error(), "10.") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
