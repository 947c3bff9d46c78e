#!/bin/sh
# One service of a Temporal cluster, named by --service; it finds the others by the address that it writes into the database.
set -eu
BIND_ON_IP=$(getent ahostsv4 "$(hostname)" | awk 'NR == 1 { print $1 }')
export BIND_ON_IP
exec temporal-server "$@"
