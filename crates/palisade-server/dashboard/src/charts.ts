// Charts: uPlot, in the colours of the page, with a legend that people can read aloud.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h, write } from "./dom";

export interface Line {
  name: string;
  label: string;
  /** A variable of the stylesheet. */
  colour: string;
}

export interface ChartOptions {
  title: string;
  /** How values are written. */
  value: (value: number | null) => string;
  /** Whether values add up. */
  stacked?: boolean;
  /** Whether the line has steps. */
  steps?: boolean;
  /** The highest value that is always shown. */
  most?: number;
}

const colour = (variable: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

type Values = (number | null)[];

export class Chart {
  readonly element: HTMLElement;
  private readonly space: HTMLElement;
  private readonly legend: HTMLElement;
  private plot: uPlot | null = null;
  private lines: Line[] = [];
  private at: number[] = [];
  private values: Values[] = [];

  constructor(private readonly options: ChartOptions) {
    this.space = h("div", { class: "plot", role: "img", "aria-label": options.title });
    this.legend = h("ul", { class: "legend" });
    this.element = h("div", { class: "chart" }, this.space, this.legend);
    new ResizeObserver(() => this.resize()).observe(this.space);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.rebuild());
  }

  show(lines: Line[], at: number[], values: Values[]): void {
    const same = lines.length === this.lines.length && lines.every((line, i) => line.name === this.lines[i]?.name);
    this.lines = lines;
    this.at = at;
    this.values = values;
    if (same && this.plot !== null) this.plot.setData(this.data());
    else this.rebuild();
    this.tell(at.length - 1);
  }

  /** Sums from below where values add up: the highest is drawn first, the rest over it. */
  private data(): uPlot.AlignedData {
    if (!this.options.stacked) return [this.at, ...this.values] as uPlot.AlignedData;
    const sums: number[][] = [];
    let below = new Array<number>(this.at.length).fill(0);
    for (const values of this.values) {
      below = below.map((sum, i) => sum + (values[i] ?? 0));
      sums.push(below);
    }
    return [this.at, ...sums.reverse()] as uPlot.AlignedData;
  }

  private series(): uPlot.Series[] {
    const steps = uPlot.paths.stepped?.({ align: 1 });
    const drawn = this.options.stacked ? [...this.lines].reverse() : this.lines;
    return drawn.map((line) => ({
      label: line.label,
      stroke: colour(line.colour),
      width: this.options.stacked ? 1 : 1.5,
      ...(this.options.stacked ? { fill: colour(line.colour) } : {}),
      ...(this.options.steps && steps ? { paths: steps } : {}),
      points: { show: false },
      spanGaps: true,
    }));
  }

  private axis(): uPlot.Axis {
    return {
      stroke: colour("--quiet"),
      grid: { stroke: colour("--grid"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
  }

  private rebuild(): void {
    this.plot?.destroy();
    const width = this.space.clientWidth;
    if (width === 0 || this.lines.length === 0) {
      this.plot = null;
      return;
    }
    const most = this.options.most ?? 1;
    this.plot = new uPlot(
      {
        width,
        height: 176,
        legend: { show: false },
        cursor: { y: false, points: { show: false } },
        scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(most, (max ?? 0) * 1.08)] } },
        series: [{}, ...this.series()],
        axes: [
          { ...this.axis(), size: 30, space: 84, values: (_, ticks) => ticks.map(time) },
          { ...this.axis(), size: 56, values: (_, ticks) => ticks.map((tick) => this.tick(tick)) },
        ],
        hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? this.at.length - 1)] },
      },
      this.data(),
      this.space,
    );
  }

  /** Of steps only whole ones are named. */
  private tick(value: number): string {
    if (!this.options.steps) return this.options.value(value);
    return Number.isInteger(value) ? String(value) : "";
  }

  private resize(): void {
    const width = this.space.clientWidth;
    if (this.plot === null) this.rebuild();
    else if (width > 0 && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: 176 });
  }

  /** The values of one instant, beside their names. */
  private tell(index: number): void {
    if (this.legend.children.length !== this.lines.length) {
      this.legend.replaceChildren(
        ...this.lines.map((line) => {
          const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
          swatch.style.background = `var(${line.colour})`;
          return h("li", {}, swatch, h("span", {}, line.label), h("b", {}));
        }),
      );
    }
    const read = this.lines.map((line, i) => {
      const text = this.options.value(this.values[i]?.[index] ?? null);
      const place = this.legend.children[i];
      const [, label, value] = place?.children ?? [];
      if (label !== undefined) write(label, line.label);
      if (value !== undefined) write(value, text);
      return `${line.label} ${text}`;
    });
    this.space.setAttribute("aria-label", `${this.options.title}: ${read.join(", ")}`);
  }
}

function time(seconds: number): string {
  const at = new Date(seconds * 1000);
  const two = (value: number): string => String(value).padStart(2, "0");
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return at.getSeconds() === 0 ? minutes : `${minutes}:${two(at.getSeconds())}`;
}
