package palisade

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// Fields that hold what a client sent. The others (`class`, `cost`, `layers`, `ip`, …) are chosen
// by the application: a wrong one is its own mistake.
var fromClients = map[string]bool{
	"method": true, "path": true, "host": true, "user_agent": true, "accept_language": true,
	"platform": true, "account": true, "username": true, "org": true, "user": true, "token": true,
	"scopes": true, "api_key": true, "client.id": true, "device": true, "device.session_id": true,
	"device.client_id": true, "device.fingerprint": true,
}

// isFromClient is true for a field that a client chose. The third member of a list is
// `scopes[2]`, the path of the second check of a batch `checks[1].path`.
func isFromClient(field string) bool {
	if strings.HasPrefix(field, "checks[") {
		_, field, _ = strings.Cut(field, ".")
	}
	name, _, _ := strings.Cut(field, "[")
	return fromClients[name]
}

// notUnicode names the first field that is not UTF-8, or is empty. The JSON encoder would
// replace the wrong bytes, and two names would become one.
func notUnicode(body any) string {
	torn := ""
	eachText(body, "", func(name, text string) {
		if torn == "" && !utf8.ValidString(text) {
			torn = name
		}
	})
	return torn
}

// longest names the field that takes most room, for a question that is too large.
func longest(body any) string {
	sizes, found := map[string]int{}, ""
	eachText(body, "", func(name, text string) {
		if !strings.HasPrefix(name, "checks[") {
			name, _, _ = strings.Cut(name, "[")
		}
		sizes[name] += len(text)
		if sizes[name] > sizes[found] {
			found = name
		}
	})
	return found
}

func eachText(value any, name string, visit func(name, text string)) {
	switch value := value.(type) {
	case string:
		visit(name, value)
	case []string:
		for index, each := range value {
			visit(fmt.Sprintf("%s[%d]", name, index), each)
		}
	case []map[string]any:
		for index, each := range value {
			eachText(each, fmt.Sprintf("%s[%d]", name, index), visit)
		}
	case map[string]any:
		keys := make([]string, 0, len(value))
		for key := range value {
			keys = append(keys, key)
		}
		sort.Strings(keys)
		for _, key := range keys {
			inner := key
			if name != "" {
				inner = name + "." + key
			}
			eachText(value[key], inner, visit)
		}
	}
}
