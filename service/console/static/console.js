// What the pages do beyond being pages: they keep themselves true, take keys, and copy ids. All of them work without it.

const main = document.querySelector("main");

// -- times ---------------------------------------------------------------------------------------------------------

const UNITS = [[31536000, "y"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function relative(milliseconds) {
  const seconds = (Date.now() - milliseconds) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return "now";
  const [unit, word] = UNITS.find(([least]) => size >= least);
  const text = `${Math.floor(size / unit)} ${word}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function tellTimes() {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    const text = relative(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

setInterval(tellTimes, 1000);

// -- where we are --------------------------------------------------------------------------------------------------
// On a narrow screen the navigation may be longer than the line.

const here = document.querySelector(".top nav [aria-current]");
// Not by `scrollIntoView`: the first Tab would go on from there, and not to the link past the navigation.
if (here) here.parentElement.scrollLeft += Math.max(here.getBoundingClientRect().right - here.parentElement.getBoundingClientRect().right, 0);

// -- copying -------------------------------------------------------------------------------------------------------

function offerCopies(within) {
  if (!navigator.clipboard) return;
  for (const text of within.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    text.after(button);
  }
}

// -- scrolling -----------------------------------------------------------------------------------------------------
// Boxes that scroll are stops of the Tab key, as long as there is something to scroll to.

function offerScrolling(within) {
  for (const box of within.querySelectorAll("[role=region][tabindex], pre")) {
    box.tabIndex = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
  }
}

addEventListener("resize", () => offerScrolling(document));
document.addEventListener("toggle", () => offerScrolling(document), true);

// -- live ----------------------------------------------------------------------------------------------------------
// The page is fetched again and those of its regions that changed are put in place of the old ones.

const SLOWEST = 30000;
const liveSwitch = document.querySelector("[data-live-switch]");
let isLive = true;
let timer = 0;
let failures = 0;
const served = new Map();

// What a region says, but for how long ago things were: that is kept true here.
function gist(region) {
  return region.outerHTML.replace(/(data-relative[^>]*>)[^<]*/g, "$1");
}

function remember(page) {
  for (const region of page.querySelectorAll("[data-region]")) served.set(region.id, gist(region));
}

function replace(old, fresh) {
  const active = document.activeElement;
  const held = old.contains(active) ? active.getAttribute("href") ?? active.id : null;
  const open = [...old.querySelectorAll("details")].map((each, index) => [index, each.open]);
  const scrolled = [...old.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]);
  old.replaceWith(fresh);
  if (fresh.querySelectorAll("details").length === open.length) {
    for (const [index, isOpen] of open) fresh.querySelectorAll("details")[index].open = isOpen;
  }
  fresh.querySelectorAll(".scroll, pre").forEach((each, index) => {
    if (scrolled[index]) [each.scrollLeft, each.scrollTop] = scrolled[index];
  });
  if (held) {
    const again = [...fresh.querySelectorAll("a, button, [id]")].find((each) => (each.getAttribute("href") ?? each.id) === held);
    again?.focus({ preventScroll: true });
  }
  offerCopies(fresh);
  offerScrolling(fresh);
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
  if (answer.redirected || answer.status === 401 || answer.status === 403) {
    location.reload();
    return;
  }
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const fresh of page.querySelectorAll("[data-region]")) {
    const old = document.getElementById(fresh.id);
    if (!old || served.get(fresh.id) === gist(fresh)) continue;
    served.set(fresh.id, gist(fresh));
    // Whoever marks text or has a place open in the region is not disturbed: the next look brings the news.
    if (old.contains(document.getSelection()?.anchorNode) && !document.getSelection().isCollapsed) {
      served.delete(fresh.id);
      continue;
    }
    replace(old, document.adoptNode(fresh));
  }
  if (document.title !== page.title) {
    document.title = page.title;
    document.querySelector("[data-announce]").textContent = page.title;
  }
  if (page.body.dataset.live) document.body.dataset.live = page.body.dataset.live;
  else delete document.body.dataset.live;
  tellTimes();
}

function schedule() {
  clearTimeout(timer);
  const pause = Number(document.body.dataset.live);
  liveSwitch.hidden = !pause;
  liveSwitch.setAttribute("aria-pressed", String(isLive));
  liveSwitch.textContent = !isLive ? "Paused" : failures ? "Live: no answer, trying again" : "Live";
  if (!pause || !isLive || document.hidden) return;
  timer = setTimeout(async () => {
    try {
      await refresh();
      failures = 0;
    } catch {
      failures += 1;
    }
    schedule();
  }, Math.min(pause * 2 ** failures, SLOWEST));
}

function switchLive() {
  isLive = !isLive;
  schedule();
}

remember(document);
offerCopies(document);
offerScrolling(document);
liveSwitch.addEventListener("click", switchLive);
document.addEventListener("visibilitychange", schedule);
schedule();

// -- keys ----------------------------------------------------------------------------------------------------------

const help = document.querySelector("[data-help-box]");
const helpButton = document.querySelector("[data-help]");
const keysSwitch = document.querySelector("[data-keys-switch]");
const KEYS_OFF = "tenantry-keys-off";
let leader = 0;

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

helpButton.hidden = false;
helpButton.addEventListener("click", () => help.showModal());
keysSwitch.checked = stored(KEYS_OFF) === null;
keysSwitch.addEventListener("change", () => {
  try {
    if (keysSwitch.checked) localStorage.removeItem(KEYS_OFF);
    else localStorage.setItem(KEYS_OFF, "1");
  } catch { /* Without storage the choice holds for this page. */ }
});

function move(step) {
  const rows = [...main.querySelectorAll("[data-row] .row-link")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
}

const DEEDS = {
  j: () => move(1),
  k: () => move(-1),
  p: () => switchLive(),
  "/": () => main.querySelector("[data-filter]")?.focus(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (!keysSwitch.checked || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  if (leader && Date.now() - leader < 1500) {
    leader = 0;
    const target = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (target) {
      event.preventDefault();
      target.click();
    }
    return;
  }
  if (event.key === "g") {
    leader = Date.now();
    return;
  }
  const deed = DEEDS[event.key];
  if (deed) {
    event.preventDefault();
    deed();
  }
});
