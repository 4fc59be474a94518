/**
 * The month: what there was, what it was for, what it costs, and whether it adds up.
 *
 * All figures are the service's own, at each level of the drill-down: this page adds nothing up.
 */
import { useState } from "react";
import { api, body, isDemo, token, useLoaded, type CostLine, type Costs, type Self } from "../api/client";
import { Hatches, Legend, StackedBars, type Column, type Series } from "../chart";
import { ofMode, ofState, STATES } from "../colours";
import { Choice, Here, Twin, Wide } from "../parts";
import { useWords, type Words } from "../text";
import { address, go, Link, usePlace, type Changes } from "../url";
import { Findings } from "./findings";
import { Lost } from "./lost";
import { costs, isMonth, monthBeside, PLATFORM, runningMonth, size } from "./report";

const LEVELS = ["tenant", "project", "mode", "workload"] as const;
type Level = (typeof LEVELS)[number];

/**
 * The month that is shown first: the last that is over, whose bill people come for, or else the month of which something
 * was counted last: a history of before is shown, and not an empty month.
 */
async function firstMonth(self: Self): Promise<string> {
  const running = runningMonth();
  const over = monthBeside(running, -1);
  if (!self.permissions.includes("fleet:read")) return over;
  const { items } = await body(api.GET("/api/v1/devices", { params: { query: { limit: 1000 } } }));
  const service = items.flatMap((device) => device.in_service);
  // Instants are texts of one form, and so are months: they compare as they are. What was counted ends before its edge.
  const wasThere = service.some((each) => each.from < running && each.counted_to > over && (each.to === null || each.to > over));
  if (wasThere) return over;
  const last = service.map((each) => each.counted_to).sort().at(-1);
  return last ? new Date(Date.parse(last) - 1).toISOString().slice(0, 7) : over;
}

export function Month({ self }: { self: Self }) {
  const place = usePlace();
  const asked = place.query.get("period");
  const first = useLoaded(isMonth(asked) ? null : "first month", () => firstMonth(self));
  if (isMonth(asked)) return <Report period={asked} self={self} />;
  return <Here loaded={first}>{(period) => <Report period={period} self={self} />}</Here>;
}

function Report({ period, self }: { period: string; self: Self }) {
  const words = useWords();
  const { texts, fill, monthName, monthAlone } = words;
  const place = usePlace();
  const running = runningMonth();
  const days = useLoaded(`costs ${period} days`, () => costs(period, ["day", "mode"]));
  const to = (month: string) => address(place, { period: month });
  return (
    <>
      <Hatches />
      <div className="head">
        <div className="title">
          <h1 className="capital">{monthName(period)}</h1>
          {period === monthBeside(running, -1) && (
            <Link to={to(running)} className="capital">{fill(texts.soFar, { month: monthAlone(running) })}</Link>
          )}
        </div>
        <div className="tools">
          <Link to={to(monthBeside(period, -1))} className="button" label={texts.previousMonth}>←</Link>
          <label className="choice">
            <span>{texts.period}</span>
            <MonthChoice period={period} />
          </label>
          <Link to={to(monthBeside(period, 1))} className="button" label={texts.nextMonth}>→</Link>
          <button type="button" onClick={() => window.print()}>{texts.print}</button>
        </div>
      </div>
      <Here loaded={days}>
        {(report) =>
          Number(report.total.gpu_hours) === 0 ? (
            <p className="note">{texts.noHours}</p>
          ) : (
            <>
              <Totals report={report} />
              {self.permissions.includes("derivation:read") && <Pending />}
              <Days report={report} />
              <Levels period={period} />
              {self.tenant === null && <WhatFor period={period} />}
              {self.tenant === null && <Lost period={period} self={self} />}
              {self.permissions.includes("findings:read") && <Findings from={report.from} to={report.to} />}
              <Reconciliation report={report} />
            </>
          )
        }
      </Here>
    </>
  );
}

/** Native month fields differ between browsers and speak their language: two lists speak this page's. */
function MonthChoice({ period }: { period: string }) {
  const { texts, language } = useWords();
  const place = usePlace();
  const [year = "", month = ""] = period.split("-");
  const now = new Date().getUTCFullYear();
  const years = [...new Set([Number(year), ...Array.from({ length: 6 }, (_, back) => now - back)])].sort();
  const choose = (changed: string) => go(address(place, { period: changed }));
  const name = (number: number) =>
    new Intl.DateTimeFormat(language, { month: "long", timeZone: "UTC" }).format(new Date(Date.UTC(2000, number, 1)));
  return (
    <>
      <select aria-label={texts.period} value={month} onChange={(event) => choose(`${year}-${event.target.value}`)}>
        {Array.from({ length: 12 }, (_, at) => {
          const value = String(at + 1).padStart(2, "0");
          return <option key={value} value={value}>{name(at)}</option>;
        })}
      </select>
      <select aria-label={`${texts.period}: ${year}`} value={year} onChange={(event) => choose(`${event.target.value}-${month}`)}>
        {years.map((each) => <option key={each} value={each}>{each}</option>)}
      </select>
    </>
  );
}

function Totals({ report }: { report: Costs }) {
  const { texts, hours, money, portion, fill, time } = useWords();
  const { total, totals, currency } = report;
  const used = totals.find((line) => line.state === "used");
  const share = (line: CostLine | undefined) => portion(size(line?.gpu_hours) / size(total.gpu_hours));
  const idle = totals.find((line) => line.state === "idle");
  return (
    <section aria-labelledby="totals">
      <h2 id="totals" className="hidden">{texts.totals}</h2>
      <dl className="totals">
        <div>
          <dt>{texts.costTotal}</dt>
          <dd>{money(total.cost, currency)}</dd>
        </div>
        <div>
          <dt>{texts.costUsed}</dt>
          <dd>{money(used?.cost, currency)}</dd>
        </div>
        <div>
          <dt>{texts.gpuHours}</dt>
          <dd>{hours(total.gpu_hours)}</dd>
        </div>
        <div>
          <dt>{texts.used}</dt>
          <dd>{hours(used?.gpu_hours ?? "0")} <small>{fill(texts.ofTotal, { share: share(used) })}</small></dd>
        </div>
        {idle && size(idle.gpu_hours) > 0 && (
          <div>
            <dt>{texts.states.idle}</dt>
            <dd>{hours(idle.gpu_hours)} <small>{fill(texts.ofTotal, { share: share(idle) })}</small></dd>
          </div>
        )}
        <div>
          <dt>{texts.unpriced}</dt>
          <dd>{hours(total.unpriced_gpu_hours)} <small>{texts.gpuHours}</small></dd>
        </div>
      </dl>
      <p className="quiet">{fill(texts.asOf, { at: time(report.as_of, report.zone) })}</p>
    </section>
  );
}

/** Says so where something waits to be counted. */
function Pending() {
  const { texts, count } = useWords();
  const loaded = useLoaded("derivation", () => body(api.GET("/api/v1/derivation")));
  if (loaded.state !== "here" || loaded.value.pending_marks === 0) return null;
  return <p className="note">{count(texts.pending, loaded.value.pending_marks)}</p>;
}

type Unit = "hours" | "cost";

/** Used time is told by its mode, all else by what it was. */
function seriesOf(line: CostLine): string {
  return line.state === "used" ? `used ${line.mode ?? "none"}` : line.state;
}

function seriesAll(lines: CostLine[], { word }: Words): Series[] {
  const keys = [...new Set(lines.filter((line) => line.state !== "rounding").map(seriesOf))];
  const order = (key: string) => (key.startsWith("used ") ? 0 : STATES.indexOf(key));
  keys.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
  return keys.map((key) => {
    const [state = "", mode] = key.split(" ");
    return mode === undefined
      ? { key, label: word("states", state), fill: ofState(state) }
      : { key, label: word("modes", mode), fill: ofMode(mode) };
  });
}

function Days({ report }: { report: Costs }) {
  const words = useWords();
  const { texts, date, hours, money } = words;
  const place = usePlace();
  const unit: Unit = place.query.get("unit") === "cost" ? "cost" : "hours";
  const series = seriesAll(report.groups, words);
  const say = (line: CostLine) => (unit === "cost" ? money(line.cost, report.currency) : hours(line.gpu_hours));
  const label = (line: CostLine) => series.find((each) => each.key === seriesOf(line))?.label ?? "";
  const byDay = new Map<string, Column>();
  const start = Date.parse(`${report.period}-01T00:00:00Z`);
  const end = Date.parse(`${monthBeside(report.period, 1)}-01T00:00:00Z`);
  for (let at = start; at < end; at += 86_400_000) {
    const day = new Date(at).toISOString().slice(0, 10);
    byDay.set(day, { key: day, label: date(day), pieces: [] });
  }
  // Pieces of one series and day that differ in mode only are drawn one on the other.
  const drawn = report.groups.filter((line) => line.state !== "rounding");
  for (const line of drawn) {
    byDay.get(line.day ?? "")?.pieces.push({
      series: seriesOf(line),
      size: size(unit === "cost" ? line.cost : line.gpu_hours),
      title: `${date(line.day ?? "")}: ${label(line)}${line.state !== "used" && line.mode !== "none" ? ` (${words.word("modes", line.mode ?? "")})` : ""}, ${say(line)}`,
    });
  }
  const title = `${texts.byDay}, ${unit === "cost" ? texts.cost : texts.gpuHours}`;
  return (
    <section aria-labelledby="days">
      <div className="head">
        <h2 id="days">{texts.byDay}</h2>
        <Choice<Unit>
          label={texts.shown}
          value={unit}
          options={[{ value: "hours", text: texts.gpuHours }, { value: "cost", text: texts.cost }]}
          choose={(value) => go(address(place, { unit: value === "cost" ? "cost" : null }))}
        />
      </div>
      <Legend series={series} />
      <div className="picture" role="group" aria-label={title} tabIndex={0}>
        <StackedBars label={title} columns={[...byDay.values()]} series={series} />
      </div>
      <Twin label={title}>
        <table>
          <thead>
            <tr>
              <th scope="col">{texts.day}</th>
              <th scope="col">{texts.mode}</th>
              <th scope="col">{texts.state}</th>
              <th scope="col" className="number">{texts.gpuHours}</th>
              <th scope="col" className="number">{texts.cost}</th>
            </tr>
          </thead>
          <tbody>
            {drawn.map((line) => (
              <tr key={`${line.day} ${line.mode} ${line.state}`}>
                <th scope="row">{date(line.day ?? "")}</th>
                <td>{words.word("modes", line.mode ?? "none")}</td>
                <td>{words.word("states", line.state)}</td>
                <td className="number">{hours(line.gpu_hours)}</td>
                <td className="number">{money(line.cost, report.currency)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Twin>
    </section>
  );
}

/** The path down from all tenants: what is chosen at each level, as far as something is. */
function chosen(query: URLSearchParams): string[] {
  const path: string[] = [];
  for (const level of LEVELS.slice(0, -1)) {
    const value = query.get(level);
    if (value === null) break;
    path.push(value);
  }
  return path;
}

/** Goes to a level: what is below it is chosen no more. */
function down(path: string[]): Changes {
  return Object.fromEntries(LEVELS.map((level, at) => [level, path[at] ?? null]));
}

async function saveCsv(period: string, groupBy: readonly string[]) {
  const query = new URLSearchParams({ period, group_by: groupBy.join(","), format: "csv" });
  const answer = await fetch(`/api/v1/reports/costs?${query}`, { headers: { Authorization: `Bearer ${token.read() ?? ""}` } });
  if (!answer.ok) throw new Error(answer.statusText);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${isDemo(answer) ? "demo-" : ""}costs-${period}-${groupBy.join("-")}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/**
 * Who pays comes first, most hours first, with what is of one name together; then what nobody held, in the order of the
 * states.
 */
function inOrder(lines: CostLine[], level: Level): [CostLine[], CostLine[]] {
  const most = new Map<string | undefined, number>();
  for (const line of lines) most.set(line[level], Math.max(most.get(line[level]) ?? 0, size(line.gpu_hours)));
  const ordered = [...lines].sort(
    (a, b) =>
      (most.get(b[level]) ?? 0) - (most.get(a[level]) ?? 0) ||
      (a[level] ?? "").localeCompare(b[level] ?? "") ||
      STATES.indexOf(a.state) - STATES.indexOf(b.state),
  );
  const isPlatform = (line: CostLine) => level === "tenant" && line.tenant === PLATFORM;
  return [ordered.filter((line) => !isPlatform(line)), ordered.filter(isPlatform)];
}

function Levels({ period }: { period: string }) {
  const words = useWords();
  const { texts, fill } = words;
  const place = usePlace();
  const path = chosen(place.query);
  const groupBy = LEVELS.slice(0, path.length + 1);
  const level: Level = groupBy[path.length] ?? "tenant";
  const loaded = useLoaded(`costs ${period} ${groupBy.join()}`, () => costs(period, groupBy));
  const [failed, setFailed] = useState<string | null>(null);
  const save = async () => {
    try {
      await saveCsv(period, groupBy);
      setFailed(null);
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    }
  };
  const show = (at: number, value: string) => (LEVELS[at] === "mode" ? words.word("modes", value) : value);
  return (
    <section aria-labelledby="levels">
      <div className="head">
        <h2 id="levels">{texts.byTenant}</h2>
        <button type="button" onClick={() => void save()}>{texts.csv}</button>
      </div>
      {failed !== null && <p role="alert" className="note bad">{texts.failed} {failed}</p>}
      <nav aria-label={texts.where} className="crumbs">
        <ol>
          <li>{path.length ? <Link to={address(place, down([]))}>{texts.allTenants}</Link> : texts.allTenants}</li>
          {path.map((value, at) => (
            <li key={at}>
              {at < path.length - 1 ? <Link to={address(place, down(path.slice(0, at + 1)))}>{show(at, value)}</Link> : show(at, value)}
            </li>
          ))}
        </ol>
      </nav>
      <Here loaded={loaded}>
        {(report) => {
          const lines = report.groups.filter(
            (line) => path.every((value, at) => line[LEVELS[at] ?? "tenant"] === value) && line.state !== "rounding",
          );
          const [payers, platform] = inOrder(lines, level);
          const most = Math.max(...lines.map((line) => size(line.gpu_hours)), 0.000001);
          const row = (line: CostLine) => {
            const value = line[level] ?? "";
            const name = show(path.length, value);
            return (
              <tr key={`${value} ${line.state}`}>
                <th scope="row">
                  {level === "workload" ? (
                    name
                  ) : (
                    <Link to={address(place, down([...path, value]))} label={`${name}: ${fill(texts.openLevel, { name })}`}>{name}</Link>
                  )}
                </th>
                <td>{words.word("states", line.state)}</td>
                <td className="number">{words.hours(line.gpu_hours)}</td>
                <td className="number">{words.money(line.cost, report.currency)}</td>
                <td className="number">{words.portion(size(line.gpu_hours) / (size(report.total.gpu_hours) || 1))}</td>
                <td className="bar">
                  <svg aria-hidden="true">
                    <rect width={`${(100 * size(line.gpu_hours)) / most}%`} height="10" style={{ fill: line.state === "used" ? "var(--accent)" : ofState(line.state) }} />
                  </svg>
                </td>
                <td className="number">{words.hours(line.unpriced_gpu_hours)}</td>
              </tr>
            );
          };
          return (
            <Wide label={texts.byTenant}>
              <table>
                <thead>
                  <tr>
                    <th scope="col">{texts[level]}</th>
                    <th scope="col">{texts.state}</th>
                    <th scope="col" className="number">{texts.gpuHours}</th>
                    <th scope="col" className="number">{texts.cost}</th>
                    <th scope="col" className="number">{texts.shareOfTotal}</th>
                    <td />
                    <th scope="col" className="number">{texts.unpriced}</th>
                  </tr>
                </thead>
                <tbody>{payers.map(row)}</tbody>
                {platform.length > 0 && (
                  <tbody>
                    <tr><th scope="rowgroup" colSpan={7} className="apart">{texts.platformTime}</th></tr>
                    {platform.map(row)}
                  </tbody>
                )}
              </table>
            </Wide>
          );
        }}
      </Here>
    </section>
  );
}

function WhatFor({ period }: { period: string }) {
  const words = useWords();
  const { texts, hours, money, portion } = words;
  const loaded = useLoaded(`costs ${period} model`, () => costs(period, ["model"]));
  return (
    <section aria-labelledby="what-for">
      <h2 id="what-for">{texts.whatFor}</h2>
      <Here loaded={loaded}>
        {(report) => (
          <Wide label={texts.whatFor}>
            <table>
              <thead>
                <tr>
                  <th scope="col">{texts.state}</th>
                  <th scope="col" className="number">{texts.gpuHours}</th>
                  <th scope="col" className="number">{texts.cost}</th>
                  <th scope="col" className="number">{texts.share}</th>
                  <th scope="col">{texts.cause}</th>
                </tr>
              </thead>
              {STATES.map((state) => {
                const total = report.totals.find((line) => line.state === state);
                if (!total) return null;
                const models = report.groups.filter((line) => line.state === state && state !== "rounding");
                return (
                  <tbody key={state} className="group">
                    <tr>
                      <th scope="rowgroup">
                        <svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" style={{ fill: state === "used" ? "var(--accent)" : ofState(state) }} /></svg>{" "}
                        {words.word("states", state)}
                      </th>
                      <td className="number">{hours(total.gpu_hours)}</td>
                      <td className="number">{money(total.cost, report.currency)}</td>
                      <td className="number">{portion(size(total.gpu_hours) / size(report.total.gpu_hours))}</td>
                      <td className="because">{(texts.causes as Record<string, string>)[state]}</td>
                    </tr>
                    {models.map((line) => (
                      <tr key={line.model} className="below">
                        <th scope="row">{line.model}</th>
                        <td className="number">{hours(line.gpu_hours)}</td>
                        <td className="number">{money(line.cost, report.currency)}</td>
                        <td className="number">{portion(size(line.gpu_hours) / size(report.total.gpu_hours))}</td>
                        <td />
                      </tr>
                    ))}
                  </tbody>
                );
              })}
            </table>
          </Wide>
        )}
      </Here>
    </section>
  );
}

function Reconciliation({ report }: { report: Costs }) {
  const { texts, fill, exact } = useWords();
  const sides = report.reconciliation;
  if (!sides) return <p className="note">{texts.ownPart}</p>;
  const isZero = /^-?0+(\.0+)?$/.test(sides.difference);
  return (
    <p className={isZero ? "note good" : "note bad"} role={isZero ? undefined : "alert"}>
      {fill(isZero ? texts.reconciled : texts.notReconciled, {
        service: exact(sides.in_service_gpu_hours),
        parts: exact(sides.parts_gpu_hours),
        difference: exact(sides.difference),
      })}
    </p>
  );
}
