/**
 * Opens the pages of a running service as a person would, and looks for what is wrong.
 *
 *   node check.mjs URL TOKEN [FOLDER]
 *
 * Each page is opened in both languages, light and dark, wide and narrow. It fails where axe finds something, where the
 * console says something, and where a request leaves the service. Then it goes a way by keys alone, signs in by link, and
 * prints. Screenshots and PDFs go to FOLDER (`shots`). Chromium is the machine's own, or the one that CHROMIUM names.
 *
 * What is looked at is found in the service: the last month that is over, a GPU that MIG cuts, and an instant at which a
 * GPU is declared unhealthy, if one is. PERIOD, AT and DEVICE say it otherwise.
 */
import { mkdirSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, token, folder = "shots"] = process.argv.slice(2);
if (!url || !token) {
  console.error("usage: node check.mjs URL TOKEN [FOLDER]");
  process.exit(2);
}
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const origin = new URL(url).origin;
mkdirSync(folder, { recursive: true });

const began = Date.now();
const faults = [];
/** What ends a part of the check is a fault of it, and the others go on. */
async function part(name, run) {
  try {
    await run((text) => faults.push(`${name}: ${text}`));
  } catch (error) {
    faults.push(`${name}: ${error.message.split("\n")[0]}`);
  }
}

async function ask(path) {
  const answer = await fetch(origin + path, { headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

const monthBefore = (at) => new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() - 1, 1)).toISOString().slice(0, 7);
const { CHROMIUM = "/usr/bin/chromium", PERIOD = monthBefore(new Date()) } = process.env;
const AT = process.env.AT ?? `${PERIOD}-14T15:00:00.000Z`;
const isDemo = (await fetch(`${origin}/healthz`)).headers.get("fatia-demo") === "true";
const report = await ask(`/api/v1/reports/costs?period=${PERIOD}&group_by=tenant`);
const [payer] = report.groups.filter((line) => line.tenant !== "platform").sort((a, b) => b.gpu_hours - a.gpu_hours);
if (!payer) throw new Error(`nobody held anything in ${PERIOD}: name another month in PERIOD`);

async function migDevice() {
  const { items } = await ask("/api/v1/nodes?limit=50");
  const devices = [];
  for (const { name } of items) devices.push(...(await ask(`/api/v1/nodes/${encodeURIComponent(name)}/layout?at=${AT}`)).devices);
  const isCut = (device) => device.layouts.some((layout) => layout.pieces.some((piece) => piece.mode === "mig"));
  return (devices.find(isCut) ?? devices.find((device) => device.layouts.length > 0))?.gpu_uuid;
}
const DEVICE = process.env.DEVICE ?? (await migDevice());
if (!DEVICE) throw new Error(`no GPU was divided at ${AT}: name another instant in AT`);

/** A declared fault that the service counts: not one of a node whose GPUs are in a pool, nor one to come. */
async function countedFault() {
  for (const each of (await ask("/api/v1/states?limit=1000")).items.filter(({ kind }) => kind === "unhealthy")) {
    const { devices } = await ask(`/api/v1/nodes/${encodeURIComponent(each.node)}/layout?at=${each.from}`);
    if (devices.some(({ layouts }) => layouts.some(({ pieces }) => pieces.some(({ state }) => state === "unhealthy")))) return each;
  }
  return null;
}
const unhealthy = await countedFault();

const pages = [
  ["sign-in", "/"],
  ["month", `/month?period=${PERIOD}`],
  ["month-cost", `/month?${new URLSearchParams({ period: PERIOD, unit: "cost", tenant: payer.tenant })}`],
  ["fleet", `/fleet?at=${AT}`],
  ["fleet-latest-use", "/fleet?by=use"],
  ["device", `/fleet?${new URLSearchParams({ device: DEVICE, at: AT })}`],
  ["device-week-use", `/fleet?${new URLSearchParams({ device: DEVICE, at: AT, hours: "168", by: "use" })}`],
  ...(unhealthy ? [["fleet-unhealthy", `/fleet?${new URLSearchParams({ node: unhealthy.node, at: unhealthy.from })}`]] : []),
];

const isRoot = process.getuid?.() === 0;
const browser = await chromium.launch({
  executablePath: CHROMIUM,
  args: [
    ...(isRoot ? ["--no-sandbox"] : []),
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
    "--disable-domain-reliability", "--no-first-run", "--no-pings", "--disable-client-side-phishing-detection",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost",
  ],
});

/** A page of a new visitor, whose every complaint is a fault. */
async function visit(fault, { secret = token, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en", reducedMotion: "reduce", ...options });
  if (secret) await context.addInitScript((text) => sessionStorage.getItem("fatia.token") ?? sessionStorage.setItem("fatia.token", text), secret);
  const page = await context.newPage();
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) fault(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => fault(`error: ${error.message}`));
  page.on("request", (request) => {
    const to = request.url();
    if (!/^(data|blob):/.test(to) && new URL(to).origin !== origin) fault(`a request to ${to}`);
  });
  return page;
}

async function loaded(page) {
  await page.waitForLoadState("networkidle");
  await page.waitForFunction(() => document.querySelector("h1") && !document.querySelector(".waiting"), null, { timeout: 20_000 });
}

async function saysDemo(page, fault) {
  const isSaid = await page.locator(".demo").isVisible();
  if (isSaid !== isDemo) fault(isDemo ? "does not say that this is a demo" : "says that this is a demo");
}

let opened = 0;
async function look(name, path, lang, colorScheme, width) {
  const where = `${name}-${lang}-${colorScheme}-${width}`;
  await part(where, async (fault) => {
    const page = await visit(fault, { viewport: { width, height: 900 }, colorScheme, locale: lang, secret: name === "sign-in" ? null : token });
    await page.goto(origin + path);
    await loaded(page);
    if ((await page.getAttribute("html", "lang")) !== lang) fault("the page is in another language");
    if (await page.locator('[role="alert"]').count()) fault(`says: ${await page.locator('[role="alert"]').first().innerText()}`);
    await saysDemo(page, fault);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) fault(`is ${over} pixels wider than its window`);
    if (name.startsWith("fleet") && !(await page.locator(".strip rect").count())) fault("no GPU is drawn");
    if (name.startsWith("device") && !(await page.locator(".timeline .piece").count())) fault("the timeline is empty");
    await page.screenshot({ path: join(folder, `${where}.png`), fullPage: true });
    if (name === "fleet-unhealthy" && !(await page.locator('.strip rect[style*="hatch-unhealthy"]').count())) fault("no GPU is drawn unhealthy");
    // What is folded away is looked at as well.
    await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
    // axe is handed to the page by the debugger: the policy of the page takes no script but its own.
    await page.evaluate(axe);
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const each of found.violations) {
      fault(`axe ${each.id}: ${each.help}: ${each.nodes.slice(0, 3).map((node) => node.target.join(" ")).join("; ")}`);
    }
    opened += 1;
    await page.context().close();
  });
}
const looks = pages.flatMap(([name, path]) =>
  ["en", "pt-BR"].flatMap((lang) => ["light", "dark"].flatMap((scheme) => [1440, 390].map((width) => [name, path, lang, scheme, width]))),
);
// As many at once as a small machine bears.
await Promise.all(
  Array.from({ length: 3 }, async () => {
    for (let next = looks.shift(); next; next = looks.shift()) await look(...next);
  }),
);

// A person's way, by keys alone: sign in, skip to the content, drill down, go to the fleet, open a GPU and its table.
await part("keys", async (fault) => {
  const page = await visit(fault, { secret: null });
  /** Goes on by Tab until there, as far as a patient person would. */
  const tabTo = async (selector) => {
    for (let step = 0; step < 150; step += 1) {
      await page.keyboard.press("Tab");
      const [isThere, isSeen, what] = await page.evaluate((wanted) => {
        const at = document.activeElement;
        if (!at || at === document.body) return [false, true, ""];
        return [at.matches(wanted), getComputedStyle(at).outlineStyle !== "none", at.outerHTML.slice(0, 80)];
      }, selector);
      if (!isSeen) fault(`nothing shows where the keys are: ${what}`);
      if (isThere) return;
    }
    throw new Error(`${selector} is not reached by keys`);
  };
  await page.goto(`${origin}/month?period=${PERIOD}`);
  await loaded(page);
  await tabTo("#token");
  await page.keyboard.type(token);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#levels");
  await loaded(page);
  await page.goto(page.url());
  await loaded(page);
  await tabTo(".skip");
  await page.keyboard.press("Enter");
  if (!(await page.evaluate(() => document.activeElement?.id === "content"))) fault("the first key does not skip to the content");
  await tabTo('section[aria-labelledby="levels"] button');
  const download = page.waitForEvent("download");
  await page.keyboard.press("Enter");
  const file = await download;
  const csv = readFileSync(await file.path(), "utf8");
  if (!csv.includes("gpu_hours")) fault(`the CSV begins with ${csv.slice(0, 60)}`);
  if (file.suggestedFilename().startsWith("demo-") !== isDemo) fault(`the CSV is called ${file.suggestedFilename()}`);
  await tabTo('section[aria-labelledby="levels"] tbody a');
  await page.keyboard.press("Enter");
  await page.waitForURL(/tenant=/);
  await page.waitForSelector(".crumbs li:nth-child(2)");
  await page.goBack();
  await page.waitForURL((to) => !to.search.includes("tenant="));
  await page.goto(`${origin}/month?period=${PERIOD}`);
  await loaded(page);
  await tabTo('header a[href^="/fleet"]');
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/fleet/);
  await page.waitForSelector(".gpus a");
  await tabTo(".gpus a");
  await page.keyboard.press("Enter");
  await page.waitForURL(/device=/);
  await page.waitForSelector(".timeline");
  await tabTo('section[aria-labelledby="timeline"] summary');
  await page.keyboard.press("Enter");
  if (!(await page.locator('section[aria-labelledby="timeline"] table').isVisible())) fault("the table of the timeline does not open");
  await page.context().close();
});

// A link signs in, also over a token that is there, and in a page that is open; and leaves nothing in the address.
await part("link", async (fault) => {
  const page = await visit(fault, { secret: null });
  await page.goto(`${origin}/#token=${token}`);
  await page.waitForSelector("#levels");
  if (page.url() !== `${origin}/`) fault(`the address is still ${page.url().replace(token, "TOKEN")}`);
  await loaded(page);
  if ((await page.evaluate(() => history.length)) > 2) fault("the link stands in the history");
  await page.evaluate(() => sessionStorage.setItem("fatia.token", "another"));
  await page.evaluate((text) => location.assign(`/#token=${text}`), token);
  await page.waitForFunction((text) => sessionStorage.getItem("fatia.token") === text && location.hash === "", token);
  await page.waitForSelector("#levels");
  // What is seen first is the month that is over.
  const name = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" }).format(new Date(`${monthBefore(new Date())}-01T00:00:00Z`));
  if (PERIOD === monthBefore(new Date()) && (await page.locator("h1").innerText()) !== name) fault("the first month is not the last that is over");
  await page.context().close();
});

// On paper there is nothing to press, and nothing is cut off.
for (const [name, path] of pages.filter(([name]) => ["month", "fleet", "device"].includes(name))) {
  await part(`print-${name}`, async (fault) => {
    const page = await visit(fault, { colorScheme: "dark", viewport: { width: 688, height: 1000 } });
    await page.goto(origin + path);
    await loaded(page);
    await page.emulateMedia({ media: "print" });
    await saysDemo(page, fault);
    for (const each of await page.locator("header, button, select, footer").all()) {
      if (await each.isVisible()) fault(`prints ${(await each.innerText()).slice(0, 40)}`);
    }
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    if (ground !== "rgb(255, 255, 255)") fault(`prints on ${ground}`);
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) fault(`is ${over} pixels wider than its paper`);
    const path_ = join(folder, `${name}.pdf`);
    await page.pdf({ path: path_, format: "A4", printBackground: true, preferCSSPageSize: true });
    if (statSync(path_).size < 10_000) fault("the PDF is empty");
    await page.context().close();
  });
}
await browser.close();

for (const fault of faults) console.log(fault);
console.log(`${opened} pages opened in ${Math.round((Date.now() - began) / 1000)} s, ${faults.length} faults`);
process.exit(faults.length ? 1 : 0);
