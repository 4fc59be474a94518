"""The month's report on DuckDB, for benches/report.rs: one file of hourly rows, one query, timed here.

Called with the database's path and the number of slices; makes the file, then answers each line of its standard input
with one line: the milliseconds of the query with all rows fetched and written as JSON, how many groups there were, and
the sum of their quantities, by which the bench knows that both sides report the same.

The formulas are those of the bench, and so are the names: keep them alike.
"""

import json
import sys
import time

try:
    import duckdb
except ImportError:
    print("absent", flush=True)
    sys.exit(0)

HOURS = 720
GROUPS = 4_000
PROJECTS_OF_TENANT = 20

# An hour after another, as rows come in; a slice's group follows from its number. Prices are kept with each row, so that
# the report multiplies nothing: money as 10^-14, as the service has it.
FILL = f"""
CREATE TABLE slice_hour AS
SELECT
    TIMESTAMP '2026-06-01 00:00:00' + to_hours(h::INTEGER) AS hour,
    s::INTEGER AS slice,
    'tenant-' || lpad((s % {GROUPS} // 4 // {PROJECTS_OF_TENANT})::VARCHAR, 3, '0') AS tenant,
    'tenant-' || lpad((s % {GROUPS} // 4 // {PROJECTS_OF_TENANT})::VARCHAR, 3, '0')
        || '-project-' || lpad((s % {GROUPS} // 4 % {PROJECTS_OF_TENANT})::VARCHAR, 2, '0') AS project,
    ['mig', 'mps', 'time_slicing', 'vgpu'][s % 4 + 1] AS mode,
    'used' AS state,
    100000 + (s * 7919 + h * 131) % 25000 AS quantity,
    0::BIGINT AS unpriced,
    (100000 + (s * 7919 + h * 131) % 25000) * [175000000, 210000000, 95000000, 320000000][s % 4 + 1] AS cost,
    100000 + (s * 7919 + h * 131) % 25000 AS metered,
    (100000 + (s * 7919 + h * 131) % 25000) * 9 AS energy_mj
FROM range({HOURS}) hours(h), range(?) slices(s)
"""

REPORT = """
SELECT project, mode, state, sum(quantity), sum(unpriced), sum(cost), sum(metered), sum(energy_mj)
FROM slice_hour
WHERE hour >= TIMESTAMP '2026-06-01' AND hour < TIMESTAMP '2026-07-01'
GROUP BY project, mode, state
ORDER BY project, mode, state
"""


def main() -> None:
    path, slices = sys.argv[1], int(sys.argv[2])
    connection = duckdb.connect(path, config={"threads": 2})
    # Rows stay in the order in which they are made.
    connection.execute(FILL, [slices])
    connection.execute("CHECKPOINT")
    connection.close()
    connection = duckdb.connect(path, read_only=True, config={"threads": 2})
    count = connection.execute("SELECT count(*) FROM slice_hour").fetchone()[0]
    print(f"ready {duckdb.__version__} {count}", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        rows = connection.execute(REPORT).fetchall()
        body = json.dumps(rows)
        elapsed = (time.perf_counter() - began) * 1_000
        assert body
        print(f"{elapsed:.3f} {len(rows)} {sum(row[3] for row in rows)}", flush=True)


main()
