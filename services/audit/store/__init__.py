"""The archive in SQL: tables, migrations, reading and writing."""
