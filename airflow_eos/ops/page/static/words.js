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

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => whole.format(n);

export function rate(n) {
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : n < 10000 ? whole.format(Math.round(n)) : short.format(n);
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function moment(ms) {
  const at = new Date(ms);
  const today = new Date(now()).toDateString() === at.toDateString();
  return today ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

export const STATES = ["unreadable", "failed", "silent", "stalled", "looking", "draining", "running", "idle", "stopped", "new"];
export const NEEDS_SOMEBODY = new Set(STATES.slice(0, 4));

// Formats the time until a system ends its work; the shell says "due", too.
export const left = (endsAt) => (endsAt - now() <= 0 ? "due" : `${age(endsAt - now())} left`);
