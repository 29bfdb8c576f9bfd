// Formats numbers and times for people. The shell formats durations the same way (airflow_eos/tables.py).

let ahead = 0; // how far the server's clock is ahead of this one, in ms

export function heard(serverNow) {
  if (serverNow) ahead = serverNow - Date.now();
}

export const now = () => Date.now() + ahead;

export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Formats an age, which changes every second: tenths would only flicker.
export function age(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  return seconds < 60 ? `${seconds} s` : duration(ms);
}

// Formats a span in one unit, where there is little room.
export function span(ms) {
  const [unit, name] = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]].find(([each]) => ms >= 2 * each || each === 1000);
  return `${compact(ms / unit)} ${name}`;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => whole.format(n);
export const counted = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const compact = (n) => short.format(n);

export function rate(n) {
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : n < 10000 ? whole.format(Math.round(n)) : short.format(n);
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const brief = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const isToday = (at) => new Date(now()).toDateString() === at.toDateString();

export function moment(ms) {
  const at = new Date(ms);
  return isToday(at) ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

// Formats a mark of an axis, whose marks are `apart` ms apart.
export function mark(ms, apart) {
  const at = new Date(ms);
  if (apart >= 86400000) return day.format(at);
  const said = apart < 60000 ? clock.format(at) : brief.format(at);
  return isToday(at) ? said : `${day.format(at)} ${said}`;
}

// The zone of all times on the page, as Airflow writes it: the browser's own.
export function zone() {
  const minutes = -new Date(now()).getTimezoneOffset();
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
}

export const STATES = ["unreadable", "failed", "silent", "stalled", "looking", "draining", "running", "idle", "stopped", "new"];
export const NEEDS_SOMEBODY = new Set(STATES.slice(0, 4));
export const ALIVE = new Set(["running", "idle", "draining", "stalled"]);

const DOCS = "https://github.com/airflow-eos/airflow-eos/blob/main/docs/";

// What to read in a state: the runbook's line.
export const RUNBOOK = Object.fromEntries(Object.entries({
  unreadable: ["what to do about this error", "recovery.md#every-error-and-what-to-do"],
  failed: ["what to do about this error", "recovery.md#every-error-and-what-to-do"],
  silent: ["who notices that, and when", "failures.md"],
  stalled: ["what to look at", "recovery.md#by-what-you-see"],
  draining: ["drain and resume", "page.md#drain-recover-resume"],
  stopped: ["drain and resume", "page.md#drain-recover-resume"],
}).map(([state, [label, page]]) => [state, { label: `Runbook: ${label}`, address: DOCS + page }]));

// Formats the time until a system ends its work; the shell says "due", too.
export const left = (endsAt) => (endsAt - now() <= 0 ? "due" : `${age(endsAt - now())} left`);
