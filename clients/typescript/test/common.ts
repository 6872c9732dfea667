/** A real `palisade serve`, stubs of one, and a plain HTTP client. */

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";

const BINARY = process.env["PALISADE_BIN"] ?? "palisade";

/** A Palisade, ended with the tests of the file at the latest. */
export class Server {
  private constructor(
    readonly url: string,
    private readonly child: ChildProcess,
    private readonly home: string,
  ) {}

  static async start(config = "", env: Record<string, string> = {}): Promise<Server> {
    const home = mkdtempSync(join(tmpdir(), "palisade-"));
    writeFileSync(join(home, "palisade.toml"), config);
    const listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    const child = spawn(BINARY, ["serve", ...listen, "--store", "memory:", "--config", "palisade.toml"], {
      cwd: home,
      env: { PALISADE_LOG__LEVEL: "error", ...env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    let url = "";
    for await (const line of createInterface(child.stdout)) {
      url = /decision API +(http:\/\/\S+)/.exec(line)?.[1] ?? url;
      if (line === "ready") break;
    }
    if (url === "") throw new Error("the service ended at its start");
    const server = new Server(url, child, home);
    after(() => server.stop());
    return server;
  }

  async stop(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      const ended = new Promise((resolve) => this.child.once("exit", resolve));
      this.child.kill("SIGKILL");
      await ended;
    }
    rmSync(this.home, { recursive: true, force: true });
  }
}

/** Listens on a free port, and stops with the tests of the file. */
export async function listen(server: net.Server): Promise<number> {
  const sockets = new Set<net.Socket>();
  server.on("connection", (socket: net.Socket) => sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  after(() => {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  });
  return (server.address() as net.AddressInfo).port;
}

/** An address where nobody listens. */
export async function freeUrl(): Promise<string> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

export type Asked = { path: string; facts: Record<string, unknown> };

/** A Palisade that answers as the test says and remembers what it was asked. */
export async function stub(
  answer: (asked: Asked, response: http.ServerResponse, all: Asked[]) => void,
): Promise<{ url: string; asked: Asked[] }> {
  const asked: Asked[] = [];
  const server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (part: Buffer) => (body += part.toString()));
    request.on("end", () => {
      asked.push({ path: request.url ?? "", facts: JSON.parse(body) as Record<string, unknown> });
      answer(asked.at(-1) as Asked, response, asked);
    });
  });
  return { url: `http://127.0.0.1:${await listen(server)}`, asked };
}

/** Allows the question. */
export function allow({ facts }: Asked, response: http.ServerResponse, more: object = {}): void {
  const answer = { decision: "allow", status: 200, request_id: facts["request_id"], ...more };
  response.end(JSON.stringify(answer));
}

export interface Sent {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: string;
  json: () => Record<string, unknown>;
}

/** Sends a request as it is: the path is not normalised, the source may be chosen. */
export function send(
  port: number,
  method: string,
  path: string,
  headers: Record<string, string> = {},
  localAddress?: string,
): Promise<Sent> {
  return new Promise((resolve, reject) => {
    const from = localAddress === undefined ? {} : { localAddress };
    const options = { host: "127.0.0.1", port, method, path, headers, agent: false, ...from };
    const request = http.request(options, (response) => {
      let body = "";
      response.on("data", (part: Buffer) => (body += part.toString()));
      response.on("end", () =>
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body,
          json: () => JSON.parse(body) as Record<string, unknown>,
        }),
      );
    });
    request.on("error", reject);
    request.end();
  });
}

/** A Palisade client that waits as long as a busy machine needs. */
export const PATIENT = { deadlineMs: 30_000, log: () => undefined };
