-- Gives the roles of roles.sql the passwords of compose.yaml, when its database is made. They come by the environment,
-- since a command line is seen in the list of processes. `fatia_backup` gets none: it connects inside the container.
\set ON_ERROR_STOP on
\getenv migrate MIGRATE_PASSWORD
\getenv app APP_PASSWORD
ALTER ROLE fatia_migrate PASSWORD :'migrate';
ALTER ROLE fatia_app PASSWORD :'app';
