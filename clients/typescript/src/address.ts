import { isIP, isIPv4 } from "node:net";

import { Misconfigured, PalisadeError } from "./errors.js";

const CHAIN_CHARS_MAX = 500;

/** A trusted proxy sent an `X-Forwarded-For` that cannot be read: answer 400. */
export class BadChain extends PalisadeError {}

/** An address as a number, with an IPv4-mapped one as its IPv4. */
interface Address {
  readonly bits: 32 | 128;
  readonly value: bigint;
  readonly text: string;
}

interface Network {
  readonly base: Address;
  readonly length: number;
}

/** Reads an address; `undefined` if it is none. A zone id means nothing here. */
export function parseAddress(text: string): Address | undefined {
  if (isIP(text) === 0 || text.includes("%")) return undefined;
  if (isIPv4(text)) return ipv4(text);
  const value = ipv6Value(text);
  if (value >> 32n === 0xffffn) return ipv4(dotted(value & 0xffff_ffffn));
  return { bits: 128, value, text: text.toLowerCase() };
}

function ipv4(text: string): Address {
  const value = text.split(".").reduce((sum, octet) => (sum << 8n) | BigInt(octet), 0n);
  return { bits: 32, value, text };
}

function dotted(value: bigint): string {
  return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 255n).join(".");
}

function ipv6Value(text: string): bigint {
  const plain = text.replace(/[\d.]+$/, (tail) => (tail.includes(".") ? groups(ipv4(tail).value) : tail));
  const [head = "", tail] = plain.split("::");
  const before = head === "" ? [] : head.split(":");
  const after = tail === undefined || tail === "" ? [] : tail.split(":");
  const middle = Array<string>(8 - before.length - after.length).fill("0");
  const all = tail === undefined ? before : [...before, ...middle, ...after];
  return all.reduce((sum, group) => (sum << 16n) | BigInt(`0x${group}`), 0n);
}

function groups(value: bigint): string {
  return `${(value >> 16n).toString(16)}:${(value & 0xffffn).toString(16)}`;
}

/** What one client owns: an IPv4 address, or an IPv6 /64. */
export function clientPrefix(text: string): string {
  const address = parseAddress(text);
  if (address === undefined || address.bits === 32) return address?.text ?? text;
  return `${(address.value >> 64n).toString(16)}/64`;
}

/**
 * The proxies whose `X-Forwarded-For` is believed: networks, addresses, or `unix` for
 * servers that listen on a Unix socket and know no peer address (I-XFF).
 *
 * The list is read from the right, and the first address that is not one of these is the
 * client. What stands left of it is the client's own claim.
 */
export class TrustedProxies {
  readonly #networks: readonly Network[];
  readonly #unix: boolean;

  constructor(networks: readonly string[]) {
    this.#unix = networks.includes("unix");
    this.#networks = networks.filter((each) => each !== "unix").map(network);
  }

  /** The client's address: the peer's, unless the peer is a trusted proxy. */
  client(peer: string | undefined, chain: string | undefined): string {
    const address = this.#peer(peer);
    if (address !== undefined && !this.#trusts(address)) return address.text;
    if (chain !== undefined) return this.#behind(chain).text;
    if (address === undefined) throw new BadChain("no `X-Forwarded-For`");
    return address.text;
  }

  /** True if what the peer says about a request is believed. */
  trusts(peer: string | undefined): boolean {
    const address = this.#peer(peer);
    return address === undefined || this.#trusts(address);
  }

  #peer(peer: string | undefined): Address | undefined {
    if (peer === undefined || peer === "") {
      if (this.#unix) return undefined;
      throw new Misconfigured(
        "the server gives no peer address: behind a Unix socket add `unix` to `trustedProxies`",
      );
    }
    const address = parseAddress(peer.split("%")[0] ?? "");
    if (address === undefined) throw new Misconfigured("the server gives a peer address that is none");
    return address;
  }

  #behind(chain: string): Address {
    if (chain.length > CHAIN_CHARS_MAX) throw new BadChain("`X-Forwarded-For` is too long");
    let found: Address | undefined;
    for (const element of chain.split(",").reverse()) {
      found = hop(element.trim());
      if (found === undefined) throw new BadChain("`X-Forwarded-For` holds an element that is no address");
      if (!this.#trusts(found)) break;
    }
    if (found === undefined) throw new BadChain("`X-Forwarded-For` is empty");
    return found;
  }

  #trusts(address: Address): boolean {
    return this.#networks.some(({ base, length }) => {
      const shift = BigInt(base.bits - length);
      return base.bits === address.bits && base.value >> shift === address.value >> shift;
    });
  }
}

function network(text: string): Network {
  const [host = "", length] = text.split("/");
  const base = parseAddress(host);
  const mapped = base?.bits === 32 && host.includes(":") ? 96 : 0;
  const bits = length === undefined ? base?.bits : Number(length) - mapped;
  const valid = length === undefined || /^\d{1,3}$/.test(length);
  if (base === undefined || bits === undefined || !valid || bits < 0 || bits > base.bits) {
    throw new Misconfigured("`trustedProxies` holds something that is no network");
  }
  return { base, length: bits };
}

/** `ip`, `ip:port`, `[v6]` or `[v6]:port`. */
function hop(text: string): Address | undefined {
  const [, bracketed, host, port] = /^(?:\[([^\]]*)\]|([^:]*))(?::(\d{1,5}))?$/.exec(text) ?? [];
  if (port !== undefined && Number(port) > 65_535) return undefined;
  if (bracketed !== undefined) return bracketed.includes(":") ? parseAddress(bracketed) : undefined;
  return parseAddress(host ?? text);
}
