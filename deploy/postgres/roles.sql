-- The three roles of Fatia's database. A superuser (or the owner of a managed database) runs this once in the
-- database that Fatia is to use; running it again changes nothing:
--
--     createdb fatia
--     psql -d fatia -v ON_ERROR_STOP=1 -f deploy/postgres/roles.sql
--
-- No passwords here: set them with `\password fatia_app`, or let pg_hba.conf decide. PostgreSQL 14 or newer.
--
-- | role          | connects for                | may                                                       |
-- |---------------|-----------------------------|-----------------------------------------------------------|
-- | fatia_migrate | `fatia migrate`, a deploy   | own the schema: create and alter tables, grant on them    |
-- | fatia_app     | the running service         | what the migrations grant it, behind row-level security   |
-- | fatia_backup  | backups                     | read every row, write none                                |

-- A role that is there already keeps its attributes; whether they are safe is checked below, not repaired in
-- silence: somebody gave them on purpose, or somebody should know.
DO $$
BEGIN
    -- Owns tables, functions and policies. Not a superuser: row-level security is forced, so it binds the owner too.
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fatia_migrate') THEN
        CREATE ROLE fatia_migrate LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;

    -- What the service connects as. It owns nothing, so it can neither drop a policy nor switch one off.
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fatia_app') THEN
        CREATE ROLE fatia_app LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;

    -- BYPASSRLS, since a backup that row-level security has thinned out would restore to a wrong bill.
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fatia_backup') THEN
        CREATE ROLE fatia_backup LOGIN NOSUPERUSER BYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
END
$$;

-- The migrations make roles that are missing, as names to grant to. Nobody can connect as one of those yet.
ALTER ROLE fatia_migrate LOGIN;
ALTER ROLE fatia_app LOGIN;
ALTER ROLE fatia_backup LOGIN;

DO $$
DECLARE
    wrong text;
BEGIN
    SELECT string_agg(rolname, ', ' ORDER BY rolname) INTO wrong
    FROM pg_roles
    WHERE rolname IN ('fatia_migrate', 'fatia_app') AND (rolsuper OR rolbypassrls OR rolcreaterole);
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'too many rights for %: superuser, bypassrls and createrole all lead past row-level security',
            wrong;
    END IF;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fatia_backup' AND NOT rolbypassrls) THEN
        RAISE EXCEPTION 'fatia_backup lacks BYPASSRLS: its backups would miss rows';
    END IF;

    -- Membership in the owner is ownership.
    IF pg_has_role('fatia_app', 'fatia_migrate', 'MEMBER') THEN
        RAISE EXCEPTION 'fatia_app is a member of fatia_migrate, so it could switch row-level security off';
    END IF;
END
$$;

-- Every table, also those of later migrations. With row_security off, a read that a policy would thin out is an
-- error instead of a short answer; BYPASSRLS is what makes it pass.
GRANT pg_read_all_data TO fatia_backup;
ALTER ROLE fatia_backup SET row_security = off;
ALTER ROLE fatia_backup SET default_transaction_read_only = on;

-- The database: the three roles and nobody else. The name is not fixed, so it is asked for.
DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT, CREATE, TEMPORARY ON DATABASE %I TO fatia_migrate', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO fatia_app, fatia_backup', current_database());
END
$$;

-- The schema: only the migrator creates in it (before PostgreSQL 15 everybody could). What the service may do with
-- a table is granted by the migration that makes the table, on the parent alone where it is partitioned.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO fatia_migrate;
GRANT USAGE ON SCHEMA public TO fatia_app, fatia_backup;
