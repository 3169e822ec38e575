// Times as their distance from now, in UTC or in local time; "t" changes it, and it is kept.
const MODES = ["ago", "utc", "local"];
const UNITS = [["d", 86400000], ["h", 3600000], ["m", 60000]];
let mode = 0;

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });

function rough(ms) {
  for (const [unit, length] of UNITS) {
    if (ms >= length) return `${Math.floor(ms / length)} ${unit}`;
  }
  return `${Math.floor(ms / 1000)} s`;
}

function words(moment) {
  if (MODES[mode] === "utc") return moment.toISOString().slice(0, 19).replace("T", " ") + "Z";
  if (MODES[mode] === "local") return clock.format(moment);
  const past = Date.now() - moment.getTime();
  if (past >= 0) return past < 1000 ? "now" : `${rough(past)} ago`;
  return `in ${rough(-past)}`;
}

export function showTimes(root = document) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.getAttribute("datetime"));
    if (!Number.isNaN(moment.getTime())) {
      const text = words(moment);
      if (each.textContent !== text) each.textContent = text;
    }
  }
}

export function nextMode() {
  mode = (mode + 1) % MODES.length;
  try { localStorage.setItem("kvstream-times", String(mode)); } catch { /* not kept */ }
  showTimes();
}

export function startTimes() {
  try { mode = Number(localStorage.getItem("kvstream-times")) % MODES.length || 0; } catch { mode = 0; }
  if (mode) showTimes();
  setInterval(() => { if (!document.hidden) showTimes(); }, 5000);
}
