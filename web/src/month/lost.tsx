/**
 * Where and when GPU time was lost, and what was declared of it. The lines are the report's own; a declared state
 * explains one if it is of its node, its day, and, where it names a GPU, of its model.
 */
import { api, body, useLoaded, type CostLine, type Schemas, type Self } from "../api/client";
import { Here, Wide } from "../parts";
import { startOfDay, useWords, type Words } from "../text";
import { address, Link, usePlace } from "../url";
import { costs, size } from "./report";

type DeclaredState = Schemas["DeclaredState"];

const LINES_MAX = 20;
const DAY = 86_400_000;
/** Which declarations explain a state of a report. */
const KINDS: Record<string, DeclaredState["kind"][]> = { unhealthy: ["unhealthy"], maintenance: ["maintenance", "migration"], unknown: [] };

interface LostLine {
  line: CostLine;
  /** The first instant of its day, and of the next. */
  from: number;
  to: number;
  declared: DeclaredState | null;
}

async function lost(period: string, self: Self): Promise<{ lines: LostLine[]; more: number; zone: string; currency: string }> {
  const report = await costs(period, ["day", "node", "model"]);
  const all = report.groups.filter((line) => line.state in KINDS && size(line.gpu_hours) > 0);
  const longest = [...all].sort((a, b) => size(b.gpu_hours) - size(a.gpu_hours)).slice(0, LINES_MAX);
  const states = new Map<string, DeclaredState[]>();
  const models = new Map<string, string>();
  if (self.permissions.includes("states:read")) {
    const nodes = new Set(longest.filter((line) => KINDS[line.state]?.length).map((line) => line.node ?? ""));
    await Promise.all(
      [...nodes].map(async (node) => {
        const { items } = await body(api.GET("/api/v1/states", { params: { query: { node, limit: 1000 } } }));
        states.set(node, items);
        if (!self.permissions.includes("fleet:read") || items.every((each) => each.gpu_uuid === null)) return;
        const devices = await body(api.GET("/api/v1/devices", { params: { query: { node, limit: 1000 } } }));
        for (const device of devices.items) models.set(device.gpu_uuid, device.gpu_model);
      }),
    );
  }
  const lines = longest.map((line) => {
    const day = line.day ?? "";
    const [from, to] = [startOfDay(day, report.zone), startOfDay(dayAfter(day), report.zone)];
    const explains = (each: DeclaredState) =>
      KINDS[line.state]?.includes(each.kind) &&
      Date.parse(each.from) < to &&
      (each.to === null || Date.parse(each.to) > from) &&
      (each.gpu_uuid === null || (models.get(each.gpu_uuid) ?? line.model) === line.model);
    return { line, from, to, declared: states.get(line.node ?? "")?.find(explains) ?? null };
  });
  lines.sort((a, b) => a.from - b.from || (a.line.node ?? "").localeCompare(b.line.node ?? ""));
  return { lines, more: all.length - longest.length, zone: report.zone, currency: report.currency };
}

const dayAfter = (day: string) => new Date(Date.parse(`${day}T00:00:00Z`) + DAY).toISOString().slice(0, 10);

/** Where the fleet is looked at: when the state began, on this day; without one the middle of the day. */
function instantOf({ from, to, declared }: LostLine): number {
  return declared ? Math.max(from, Date.parse(declared.from)) : from + (to - from) / 2;
}

function because({ line, declared }: LostLine, zone: string, { texts, fill, time, word }: Words): string {
  if (declared) {
    const said = fill(declared.to === null ? texts.declaredOpen : texts.declared, {
      kind: word("kinds", declared.kind), from: time(declared.from, zone), to: declared.to === null ? "" : time(declared.to, zone), source: declared.source,
    });
    const part = declared.slice ?? declared.gpu_uuid;
    return part ? `${said}, ${part}` : said;
  }
  return line.state === "unknown" ? texts.nobodyReported : "–";
}

export function Lost({ period, self }: { period: string; self: Self }) {
  const words = useWords();
  const { texts, count, date, hours, money, time, word } = words;
  const place = usePlace();
  const loaded = useLoaded(`lost ${period}`, () => lost(period, self));
  return (
    <section aria-labelledby="lost">
      <h2 id="lost">{texts.lost}</h2>
      <Here loaded={loaded}>
        {({ lines, more, zone, currency }) =>
          lines.length === 0 ? (
            <p className="quiet">{texts.nothingLost}</p>
          ) : (
            <>
              <Wide label={texts.lost}>
                <table>
                  <thead>
                    <tr>
                      <th scope="col">{texts.day}</th>
                      <th scope="col">{texts.node}</th>
                      <th scope="col">{texts.model}</th>
                      <th scope="col">{texts.state}</th>
                      <th scope="col" className="number">{texts.gpuHours}</th>
                      <th scope="col" className="number">{texts.cost}</th>
                      <th scope="col">{texts.cause}</th>
                    </tr>
                  </thead>
                  <tbody>
                    {lines.map((each) => {
                      const { line } = each;
                      const node = line.node ?? "";
                      const at = new Date(instantOf(each)).toISOString();
                      return (
                        <tr key={`${line.day} ${node} ${line.model} ${line.state}`}>
                          <th scope="row" className="whole">{date(line.day ?? "")}</th>
                          <td className="whole"><Link to={address(place, { node, at }, "/fleet")} label={`${node}, ${time(at)}`}>{node}</Link></td>
                          <td>{line.model}</td>
                          <td>{word("states", line.state)}</td>
                          <td className="number">{hours(line.gpu_hours)}</td>
                          <td className="number">{money(line.cost, currency)}</td>
                          <td className="because">{because(each, zone, words)}</td>
                        </tr>
                      );
                    })}
                  </tbody>
                </table>
              </Wide>
              {more > 0 && <p className="quiet">{count(texts.moreLost, more)}</p>}
            </>
          )
        }
      </Here>
    </section>
  );
}
