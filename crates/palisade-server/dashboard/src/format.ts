// Numbers and times as people read them.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value: number): string => (Math.abs(value) < 10_000 ? plain : short).format(value);

/** All digits: of money and tokens the last ones matter too. */
export const whole = (value: number): string => plain.format(value);

export function duration(us: number | null | undefined): string {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${us} µs`;
  if (us < 1_000_000) return `${plain.format(us / 1000)} ms`;
  return `${plain.format(us / 1_000_000)} s`;
}

/** Seconds as `3 d 4 h`, `2 min 5 s`. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const parts: [number, string][] = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor((whole % 86400) / 3600), "h"],
    [Math.floor((whole % 3600) / 60), "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

export const clock = (at: Date): string => at.toLocaleTimeString([], { hour12: false });

export function moment(at: Date): string {
  const today = new Date().toDateString() === at.toDateString();
  return today ? clock(at) : `${at.toLocaleDateString([], { month: "short", day: "numeric" })}, ${clock(at)}`;
}

export const percent = (part: number, whole: number): string =>
  whole === 0 ? "0 %" : `${plain.format((100 * part) / whole)} %`;

/** `hard_block` → `hard block`. */
export const words = (name: string): string => name.replaceAll("_", " ");
