/**
 * What the service found in a span that someone should know: of each kind how often, and the first subjects, in its words.
 * It finds anew in each hour; here that is one line.
 */
import { api, body, useLoaded, type Schemas } from "../api/client";
import { Here, Wide } from "../parts";
import { useWords } from "../text";

type Finding = Schemas["Finding"];
/** A subject's findings of one kind: the first of them, until when the last was, and how many there are. */
interface Subject {
  first: Finding;
  until: string | null;
  count: number;
}
interface Kind {
  kind: string;
  count: number;
  subjects: Subject[];
}

const PAGES_MAX = 5;
/** Subjects of one kind. */
const SHOWN = 3;

async function findings(from: string, to: string): Promise<{ kinds: Kind[]; isCut: boolean }> {
  const found: Finding[] = [];
  let after: string | null = null;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const answer: { items: Finding[]; next: string | null } = await body(
      api.GET("/api/v1/findings", { params: { query: { limit: 1000, ...(after && { after }) } } }),
    );
    found.push(
      ...answer.items.filter((each) => Date.parse(each.since) < Date.parse(to) && (each.until === null || Date.parse(each.until) > Date.parse(from))),
    );
    after = answer.next;
    if (!after) break;
  }
  found.sort((a, b) => Date.parse(a.since) - Date.parse(b.since));
  const kinds = new Map<string, { count: number; subjects: Map<string, Subject> }>();
  for (const each of found) {
    const kind = kinds.get(each.kind) ?? { count: 0, subjects: new Map<string, Subject>() };
    kinds.set(each.kind, kind);
    kind.count += 1;
    const key = `${each.scope} ${each.subject} ${each.detail}`;
    const subject = kind.subjects.get(key) ?? { first: each, until: each.until, count: 0 };
    kind.subjects.set(key, subject);
    subject.count += 1;
    subject.until = each.until;
  }
  const all = [...kinds].map(([kind, { count, subjects }]) => ({ kind, count, subjects: [...subjects.values()] }));
  return { kinds: all.sort((a, b) => b.count - a.count), isCut: after !== null };
}

/** Nothing is said where nothing was found. */
export function Findings({ from, to }: { from: string; to: string }) {
  const { texts, count, time, word } = useWords();
  const loaded = useLoaded(`findings ${from} ${to}`, () => findings(from, to));
  if (loaded.state === "here" && loaded.value.kinds.length === 0 && !loaded.value.isCut) return null;
  return (
    <section aria-labelledby="findings">
      <h2 id="findings">{texts.findings}</h2>
      <Here loaded={loaded}>
        {({ kinds, isCut }) => (
          <>
            {isCut && <p className="note">{count(texts.findingsCut, PAGES_MAX * 1000)}</p>}
            <Wide label={texts.findings}>
              <table>
                <thead>
                  <tr>
                    <th scope="col">{texts.finding}</th>
                    <th scope="col">{texts.node}</th>
                    <th scope="col">{texts.subject}</th>
                    <th scope="col">{texts.from}</th>
                    <th scope="col">{texts.to}</th>
                    <th scope="col" className="number">{texts.times}</th>
                    <th scope="col">{texts.detail}</th>
                  </tr>
                </thead>
                {kinds.map(({ kind, count: howOften, subjects }) => (
                  <tbody key={kind} className="group">
                    <tr>
                      <th scope="rowgroup" colSpan={7}>
                        {word("findingKinds", kind)}: {count(texts.foundTimes, howOften)}
                        {subjects.length > SHOWN && `, ${count(texts.moreSubjects, subjects.length - SHOWN)}`}
                      </th>
                    </tr>
                    {subjects.slice(0, SHOWN).map(({ first: each, until, count: times }) => (
                      <tr key={`${each.scope} ${each.subject} ${each.since}`} className="below">
                        <td />
                        <td>{each.scope ?? "–"}</td>
                        <td><code>{each.subject || "–"}</code></td>
                        <td className="whole">{time(each.since)}</td>
                        <td className="whole">{until === null ? "–" : time(until)}</td>
                        <td className="number">{times}</td>
                        <td>{each.detail}</td>
                      </tr>
                    ))}
                  </tbody>
                ))}
              </table>
            </Wide>
          </>
        )}
      </Here>
    </section>
  );
}
