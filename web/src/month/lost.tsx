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
  isPool: boolean;
  /** The first instant of its day, and of the next. */
  from: number;
  to: number;
  declared: DeclaredState | null;
}

/** What was declared where a node's or pool's GPUs are, and which models these are. */
interface Known {
  states: DeclaredState[];
  models: Map<string, string>;
}

/** States are declared of nodes: of a pool they are those of its GPUs' nodes. */
async function knownOf(scope: string, isPool: boolean): Promise<Known> {
  const query = { ...(isPool ? { pool: scope } : { node: scope }), limit: 1000 };
  const { items: devices } = await body(api.GET("/api/v1/devices", { params: { query } }));
  const nodes = isPool ? [...new Set(devices.flatMap((each) => each.in_service.map(({ node }) => node)))].slice(0, LINES_MAX) : [scope];
  const answers = await Promise.all(nodes.map((node) => body(api.GET("/api/v1/states", { params: { query: { node, limit: 1000 } } }))));
  return { states: answers.flatMap(({ items }) => items), models: new Map(devices.map((each) => [each.gpu_uuid, each.gpu_model])) };
}

async function lost(period: string, self: Self): Promise<{ lines: LostLine[]; more: number; zone: string; currency: string }> {
  const report = await costs(period, ["day", "node", "model"]);
  const all = report.groups.filter((line) => line.state in KINDS && size(line.gpu_hours) > 0);
  const longest = [...all].sort((a, b) => size(b.gpu_hours) - size(a.gpu_hours)).slice(0, LINES_MAX);
  const scopes = new Set(longest.filter((line) => KINDS[line.state]?.length).map((line) => line.node ?? ""));
  const known = new Map<string, Known>();
  // Reports name pools where they name nodes, and none has a node's name.
  const pools = new Set<string>();
  if (longest.length && self.permissions.includes("fleet:read")) {
    for (let after: string | null | undefined; after !== null; ) {
      const page: { items: { name: string }[]; next: string | null } = await body(
        api.GET("/api/v1/pools", { params: { query: { limit: 1000, ...(after && { after }) } } }),
      );
      for (const { name } of page.items) pools.add(name);
      after = page.next;
    }
    if (self.permissions.includes("states:read")) {
      await Promise.all([...scopes].map(async (scope) => known.set(scope, await knownOf(scope, pools.has(scope)))));
    }
  }
  const lines = longest.map((line) => {
    const day = line.day ?? "";
    const here = known.get(line.node ?? "");
    const [from, to] = [startOfDay(day, report.zone), startOfDay(dayAfter(day), report.zone)];
    const explains = (each: DeclaredState) =>
      KINDS[line.state]?.includes(each.kind) &&
      Date.parse(each.from) < to &&
      (each.to === null || Date.parse(each.to) > from) &&
      (each.gpu_uuid === null || here?.models.get(each.gpu_uuid) === line.model);
    return { line, isPool: pools.has(line.node ?? ""), from, to, declared: here?.states.find(explains) ?? null };
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
                          <td className="whole"><Link to={address(place, { [each.isPool ? "pool" : "node"]: node, at }, "/fleet")} label={`${node}, ${time(at)}`}>{node}</Link></td>
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
