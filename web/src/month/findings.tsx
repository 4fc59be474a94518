/** What the service found in a span that someone should know: how often, and the first of each kind in its words. */
import { api, body, useLoaded, type Schemas } from "../api/client";
import { Here, Wide } from "../parts";
import { useWords } from "../text";

type Finding = Schemas["Finding"];

const PAGES_MAX = 5;
/** Of one kind. */
const SHOWN = 3;

async function findings(from: string, to: string): Promise<{ kinds: [string, Finding[]][]; isCut: boolean }> {
  const kinds = new Map<string, Finding[]>();
  let after: string | null = null;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const answer: { items: Finding[]; next: string | null } = await body(
      api.GET("/api/v1/findings", { params: { query: { limit: 1000, ...(after && { after }) } } }),
    );
    for (const each of answer.items) {
      if (Date.parse(each.since) >= Date.parse(to) || (each.until !== null && Date.parse(each.until) <= Date.parse(from))) continue;
      kinds.set(each.kind, [...(kinds.get(each.kind) ?? []), each]);
    }
    after = answer.next;
    if (!after) break;
  }
  for (const each of kinds.values()) each.sort((a, b) => a.since.localeCompare(b.since));
  return { kinds: [...kinds].sort(([, a], [, b]) => b.length - a.length), isCut: after !== null };
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
                    <th scope="col">{texts.detail}</th>
                  </tr>
                </thead>
                {kinds.map(([kind, all]) => (
                  <tbody key={kind} className="group">
                    <tr>
                      <th scope="rowgroup" colSpan={5}>{word("findingKinds", kind)}: {all.length}</th>
                    </tr>
                    {all.slice(0, SHOWN).map((each) => (
                      <tr key={`${each.scope} ${each.subject} ${each.since}`} className="below">
                        <td />
                        <td>{each.scope ?? "–"}</td>
                        <td><code>{each.subject || "–"}</code></td>
                        <td className="whole">{time(each.since)}</td>
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
