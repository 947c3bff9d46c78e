#!/bin/sh
# The database server of a Temporal cluster; makes its database at the first start.
# Of the upstream image's variables it knows POSTGRES_USER and POSTGRES_PASSWORD.
set -eu
directory=/var/lib/postgresql/data/pgdata
if [ ! -d "$directory" ]; then
    # Under its name only when it is whole: this may be killed at any time.
    rm -rf "$directory.new" "$directory.password"
    (umask 077 && printf '%s\n' "${POSTGRES_PASSWORD:?the password of the first user must be set}" > "$directory.password")
    initdb --pgdata="$directory.new" --username="${POSTGRES_USER:-postgres}" --pwfile="$directory.password" \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
    rm "$directory.password"
    printf 'host all all all scram-sha-256\n' >> "$directory.new/pg_hba.conf"
    mv "$directory.new" "$directory"
fi
# JIT is for queries that take seconds; Temporal has none.
exec postgres -D "$directory" -c listen_addresses='*' -c jit=off "$@"
