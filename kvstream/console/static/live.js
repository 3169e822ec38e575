// The content of the page as it changes, by server-sent events; a hidden tab has no connection.
import { showTimes } from "./times.js";

const POLL_MS = 10000;
let main, source = null, timer = 0, waiting = null;

function plain(root) {
  const copy = root.cloneNode(true);
  for (const each of copy.querySelectorAll("time")) each.textContent = "";
  return copy.innerHTML;
}

// A person who has chosen rows or types something is not disturbed: the newest content waits.
function isBusy() {
  const active = document.activeElement;
  const types = active && main.contains(active) && active.matches("input, select, textarea");
  return types || main.querySelector("input[type=checkbox]:checked, dialog[open]") !== null;
}

function put(html) {
  waiting = html;
  if (isBusy()) return;
  waiting = null;
  const next = document.createElement("main");
  next.innerHTML = html;
  if (plain(next) === plain(main)) return;
  const rows = [...main.querySelectorAll("tbody tr")];
  const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const link = document.activeElement && main.contains(document.activeElement)
    ? document.activeElement.getAttribute("href") : null;
  main.replaceChildren(...next.childNodes);
  showTimes(main);
  if (at >= 0) main.querySelectorAll("tbody tr")[at]?.setAttribute("aria-selected", "true");
  if (link !== null) [...main.querySelectorAll("a")].find((a) => a.getAttribute("href") === link)?.focus();
}

function say(text) {
  document.getElementById("trouble").textContent = text;
  document.body.classList.toggle("is-away", text !== "");
}

async function poll() {
  try {
    const reply = await fetch(location.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    if (reply.status === 401) say("Your login has ended: log in again.");
    else if (reply.ok) { say(""); put(page.getElementById("main").innerHTML); } else say("The store does not answer.");
  } catch { say("The console does not answer. Trying again ..."); }
}

function open() {
  close();
  source = new EventSource(main.dataset.live);
  source.addEventListener("open", () => { document.body.dataset.state = "live"; say(""); });
  source.addEventListener("main", (event) => { say(""); put(JSON.parse(event.data)); });
  source.addEventListener("trouble", (event) => say(`This is not current: ${JSON.parse(event.data)}.`));
  source.addEventListener("error", () => {
    document.body.dataset.state = "away";
    if (source && source.readyState === EventSource.CLOSED) {
      close();
      timer = setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
      poll();
    } else say("The console does not answer. Trying again ...");
  });
}

function close() {
  if (source) source.close();
  source = null;
  clearInterval(timer);
}

export function startLive(element) {
  main = element;
  if (!main || !main.dataset.live) return;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  main.addEventListener("change", () => { if (waiting !== null) put(waiting); });
  main.addEventListener("focusout", () => setTimeout(() => { if (waiting !== null) put(waiting); }, 0));
  if (!document.hidden) open();
}
