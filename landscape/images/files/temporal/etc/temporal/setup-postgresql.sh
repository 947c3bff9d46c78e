#!/bin/sh
# Make the two databases of a Temporal cluster, or bring their tables to this version. Connection: SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD.
set -eu
for database in temporal temporal_visibility; do
    case "$database" in
        temporal) schema=postgresql/v12/temporal ;;
        *) schema=postgresql/v12/visibility ;;
    esac
    temporal-sql-tool --plugin postgres12 --database "$database" create-database
    temporal-sql-tool --plugin postgres12 --database "$database" setup-schema --version 0.0
    temporal-sql-tool --plugin postgres12 --database "$database" update-schema --schema-name "$schema"
done
