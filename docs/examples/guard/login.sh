#!/bin/sh
# A login that asks the guard before and after the password is verified. Values from
# clients must be JSON-escaped first; these are plain.
PALISADE=${PALISADE:-http://127.0.0.1:8080}
IP=$1 ACCOUNT=$2 DEVICE=$3 RIGHT=$4
verify_password() { [ "$RIGHT" = right ]; }

member() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
ask() {
  curl -sf -m 2 "$PALISADE/v1/guard/login/$1" -d "{\"ip\":\"$IP\",\"account\":\"$ACCOUNT\",\"username\":\"$ACCOUNT\",\"device\":{\"client_id\":\"$DEVICE\"}${ID:+,\"request_id\":\"$ID\"}}"
}
BEFORE=$(ask check) || { echo "503 Service Unavailable"; exit 1; }
case $BEFORE in
  '{"decision":"allow"'*) ID=$(echo "$BEFORE" | member request_id) ;;
  *) echo "429 Too Many Requests"; exit 1 ;;
esac
if verify_password; then ask success >/dev/null; echo "200 OK"
else
  DELAY=$(ask failure | member delay_ms)
  sleep "$(echo "${DELAY:-0}" | awk '{print $1 / 1000}')"
  echo "401 Unauthorized"
fi
