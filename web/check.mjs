/**
 * Opens the pages of a running service as a person would, and looks for what is wrong.
 *
 *   node check.mjs URL TOKEN [FOLDER]
 *
 * Each page is opened in both languages, light and dark, wide and narrow. It fails where axe finds something, where the
 * console says something, and where a request leaves the service. Screenshots go to FOLDER (`shots`). Chromium is the
 * machine's own, or the one that CHROMIUM names. PERIOD, AT, NODE and DEVICE say what is looked at.
 */
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, token, folder = "shots"] = process.argv.slice(2);
if (!url || !token) {
  console.error("usage: node check.mjs URL TOKEN [FOLDER]");
  process.exit(2);
}
const { CHROMIUM = "/usr/bin/chromium", PERIOD = "2026-09", AT = "2026-09-10T12:00:00.000Z", NODE, DEVICE } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const origin = new URL(url).origin;
mkdirSync(folder, { recursive: true });

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

const device = NODE && DEVICE ? [["device", `/fleet?${new URLSearchParams({ node: NODE, device: DEVICE, at: AT })}`]] : [];
const pages = [
  ["sign-in", "/"],
  ["month", `/month?period=${PERIOD}`],
  ["month-cost", `/month?period=${PERIOD}&unit=cost&tenant=vision`],
  ["fleet", `/fleet?at=${AT}`],
  ["fleet-latest-use", "/fleet?by=use"],
  ...device,
];
const faults = [];
let opened = 0;
for (const [name, path] of pages) {
  for (const lang of ["en", "pt-BR"]) {
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1440, 390]) {
        const where = `${name}-${lang}-${colorScheme}-${width}`;
        const fault = (text) => faults.push(`${where}: ${text}`);
        const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, locale: lang, reducedMotion: "reduce" });
        if (name !== "sign-in") {
          await context.addInitScript((secret) => sessionStorage.setItem("fatia.token", secret), token);
        }
        const page = await context.newPage();
        page.on("console", (message) => {
          if (["error", "warning"].includes(message.type())) fault(`console: ${message.text()}`);
        });
        page.on("pageerror", (error) => fault(`error: ${error.message}`));
        page.on("request", (request) => {
          const to = request.url();
          if (!/^(data|blob):/.test(to) && new URL(to).origin !== origin) fault(`a request to ${to}`);
        });
        await page.goto(origin + path, { waitUntil: "networkidle" });
        await page.waitForFunction(() => document.querySelector("h1") && !document.querySelector(".waiting"), null, { timeout: 20_000 });
        if ((await page.getAttribute("html", "lang")) !== lang) fault("the page is in another language");
        if (await page.locator('[role="alert"]').count()) fault(`says: ${await page.locator('[role="alert"]').first().innerText()}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        if (over > 0) fault(`is ${over} pixels wider than its window`);
        await page.screenshot({ path: join(folder, `${where}.png`), fullPage: true });
        // What is folded away is looked at as well.
        await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
        // axe is handed to the page by the debugger: the policy of the page takes no script but its own.
        await page.evaluate(axe);
        const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
        for (const each of found.violations) {
          fault(`axe ${each.id}: ${each.help}: ${each.nodes.slice(0, 3).map((node) => node.target.join(" ")).join("; ")}`);
        }
        opened += 1;
        await context.close();
      }
    }
  }
}

// A person's way, by keys alone: sign in, go to the fleet, come back, drill down, and the address says where one is.
{
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: "en" });
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`keys: ${error.message}`));
  await page.goto(`${origin}/month?period=${PERIOD}`);
  await page.locator("#token").focus();
  await page.keyboard.type(token);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#levels");
  const tenant = page.locator('section[aria-labelledby="levels"] tbody a').first();
  await tenant.focus();
  await page.keyboard.press("Enter");
  await page.waitForURL(/tenant=/);
  await page.waitForSelector(".crumbs li:nth-child(2)");
  await page.goBack();
  await page.waitForURL((to) => !to.search.includes("tenant="));
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download as CSV" }).press("Enter");
  const csv = readFileSync(await (await download).path(), "utf8");
  if (!csv.startsWith("tenant,") && !csv.includes("gpu_hours")) faults.push(`keys: the CSV begins with ${csv.slice(0, 60)}`);
  await page.emulateMedia({ media: "print" });
  await page.pdf({ path: join(folder, "month.pdf"), format: "A4", printBackground: true });
  await context.close();
}
await browser.close();

for (const fault of faults) console.log(fault);
console.log(`${opened} pages opened, ${faults.length} faults`);
process.exit(faults.length ? 1 : 0);
