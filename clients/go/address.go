package palisade

import (
	"net/netip"
	"strings"
)

const chainCharsMax = 500

// badChainError says that a trusted proxy sent an `X-Forwarded-For` that cannot be read.
type badChainError struct{ detail string }

func (e *badChainError) Error() string { return e.detail }

// trustedProxies are the proxies whose `X-Forwarded-For` is believed (I-XFF). The list is read
// from the right, and the first address that is not one of them is the client: what stands left
// of it is the client's own claim.
type trustedProxies struct {
	networks []netip.Prefix
	unix     bool
}

// newTrustedProxies reads networks, addresses, and `unix` for servers on a Unix socket, which know
// no peer address.
func newTrustedProxies(given []string) (trustedProxies, error) {
	var proxies trustedProxies
	for _, each := range given {
		if each == "unix" {
			proxies.unix = true
			continue
		}
		network, err := netip.ParsePrefix(each)
		if address, wrong := netip.ParseAddr(each); wrong == nil {
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil || !network.IsValid() {
			return trustedProxies{}, &MisconfiguredError{"`TrustedProxies` holds something that is no network"}
		}
		proxies.networks = append(proxies.networks, network.Masked())
	}
	return proxies, nil
}

// client is the client's address, and whether what the peer says about a request is believed.
func (p trustedProxies) client(remote string, chain []string) (ip string, believed bool, err error) {
	peer, onSocket, err := p.peer(remote)
	if err != nil {
		return "", false, err
	}
	if !onSocket && !p.trusts(peer) {
		return peer.String(), false, nil
	}
	if len(chain) == 0 {
		if onSocket {
			return "", true, &badChainError{"no `X-Forwarded-For`"}
		}
		return peer.String(), true, nil
	}
	behind, err := p.behind(strings.Join(chain, ","))
	return behind.String(), true, err
}

func (p trustedProxies) peer(remote string) (peer netip.Addr, onSocket bool, err error) {
	// What net/http says of a connection over a Unix socket.
	if remote == "" || remote == "@" {
		if p.unix {
			return netip.Addr{}, true, nil
		}
		return netip.Addr{}, false, &MisconfiguredError{
			"the server gives no peer address: behind a Unix socket add `unix` to `TrustedProxies`",
		}
	}
	with, err := netip.ParseAddrPort(remote)
	if err == nil {
		return with.Addr().Unmap().WithZone(""), false, nil
	}
	peer, err = netip.ParseAddr(remote)
	if err != nil {
		return netip.Addr{}, false, &MisconfiguredError{"`RemoteAddr` of the request is no address"}
	}
	return peer.Unmap().WithZone(""), false, nil
}

func (p trustedProxies) behind(chain string) (netip.Addr, error) {
	if len(chain) > chainCharsMax {
		return netip.Addr{}, &badChainError{"`X-Forwarded-For` is too long"}
	}
	elements := strings.Split(chain, ",")
	var address netip.Addr
	for index := len(elements) - 1; index >= 0; index-- {
		var ok bool
		if address, ok = hop(strings.TrimSpace(elements[index])); !ok {
			return netip.Addr{}, &badChainError{"`X-Forwarded-For` holds an element that is no address"}
		}
		if !p.trusts(address) {
			break
		}
	}
	return address, nil
}

func (p trustedProxies) trusts(address netip.Addr) bool {
	for _, network := range p.networks {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// hop reads `ip`, `ip:port`, `[v6]` or `[v6]:port`; a zone means nothing here.
func hop(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
			text += ":0"
		}
		var with netip.AddrPort
		with, err = netip.ParseAddrPort(text)
		address = with.Addr()
	}
	return address.Unmap(), err == nil && address.Zone() == ""
}
