#!/bin/sh
# A login that asks the guard before and after the password is verified.
PALISADE=${PALISADE:-http://127.0.0.1:8080}
IP=$1 ACCOUNT=$2 DEVICE=$3 RIGHT=$4
verify_password() { [ "$RIGHT" = right ]; }

ask() { curl -sf "$PALISADE/v1/guard/login/$1" -d "{\"ip\":\"$IP\",\"account\":\"$ACCOUNT\",\"device\":{\"client_id\":\"$DEVICE\"}}"; }
case $(ask check | sed 's/^{"decision":"\([a-z_]*\)".*/\1/') in
  allow) ;;
  *) echo "429 Too Many Requests"; exit 1 ;;
esac
if verify_password; then ask success >/dev/null; echo "200 OK"
else ask failure >/dev/null; echo "401 Unauthorized"; fi
