// Print Lighthouse's results as a line of JSON per page, then whether the first can be installed.
// The arguments are the browser's path, the cookies as JSON, and the URLs.

import lighthouse from "lighthouse";
import puppeteer from "puppeteer-core";

const [executablePath, cookies, ...urls] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu"];
const browser = await puppeteer.launch({ executablePath, headless: true, args });
const domain = new URL(urls[0]).hostname;
await browser.setCookie(...JSON.parse(cookies).map((one) => ({ ...one, domain, path: "/" })));
const page = await browser.newPage();

for (const url of urls) {
  const options = {
    onlyCategories: ["accessibility", "best-practices"],
    disableStorageReset: true,
    logLevel: "error",
  };
  const { lhr } = await lighthouse(url, options, undefined, page);
  const scores = {};
  const wrong = [];
  for (const { id, score, auditRefs } of Object.values(lhr.categories)) {
    scores[id] = Math.round(score * 100);
    for (const ref of auditRefs) {
      const audit = lhr.audits[ref.id];
      if (ref.weight && audit.score !== null && audit.score < 1) wrong.push(ref.id);
    }
  }
  const { pathname, search } = new URL(lhr.finalDisplayedUrl);
  console.log(JSON.stringify({ path: pathname + search, scores, wrong }));
}

await page.goto(urls[0]);
await page.evaluate(() => navigator.serviceWorker.ready.then(() => true));
const session = await page.createCDPSession();
const { installabilityErrors } = await session.send("Page.getInstallabilityErrors");
console.log(JSON.stringify({ installabilityErrors }));
await browser.close();
