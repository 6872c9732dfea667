/** Local caps and addresses: the parts that decide alone. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadChain, Caps, Misconfigured, TrustedProxies } from "palisade-client";

/** A small generator with a seed: a failure reproduces. */
function seeded(seed: number): () => number {
  let state = seed + 1;
  return () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fff_ffff;
    return state / 0x8000_0000;
  };
}

test("no window holds more than the caps", () => {
  for (let seed = 0; seed < 20; seed += 1) {
    const random = seeded(seed);
    const pick = (most: number) => Math.floor(random() * most);
    const [perKey, total, windowMs] = [1 + pick(4), 1 + pick(9), 1_000 + 500 * pick(9)];
    let now = 0;
    const caps = new Caps({ perKey, total, windowMs, now: () => now });
    const admitted: [number, string][] = [];
    for (let n = 0; n < 400; n += 1) {
      now += 125 * pick(4);
      const who = `ip 203.0.113.${pick(5)}`;
      if (caps.take([who]) === undefined) admitted.push([now, who]);
      const inside = admitted.filter(([at]) => at > now - windowMs).map(([, key]) => key);
      assert.ok(inside.length <= total);
      for (const key of new Set(inside)) {
        assert.ok(inside.filter((each) => each === key).length <= perKey);
      }
    }
    assert.ok(admitted.length > total, "the caps free up again");
  }
});

test("a refusal says how long, and takes nothing", () => {
  let now = 0;
  const caps = new Caps({ perKey: 1, total: 10, windowMs: 10, now: () => now });
  assert.equal(caps.take(["account a", "ip 203.0.113.1"]), undefined);
  now = 4;
  assert.equal(caps.take(["account a", "ip 203.0.113.2"]), 6);
  assert.equal(caps.take(["account b", "ip 203.0.113.2"]), undefined);
  now = 10;
  assert.equal(caps.take(["account a", "ip 203.0.113.1"]), undefined);
});

test("memory is bounded and a flood of keys evicts nobody", () => {
  let now = 0;
  const caps = new Caps({ perKey: 1, total: 1_000, windowMs: 10, keysMax: 5, now: () => now });
  const taken = Array.from({ length: 8 }, (_, n) => caps.take([`account ${n}`]));
  assert.deepEqual(taken, [...Array<undefined>(5).fill(undefined), 10, 10, 10]);
  assert.equal(caps.take(["account 0"]), 10);
  now = 10;
  assert.equal(caps.take(["account 7"]), undefined);
});

test("an IPv6 client is its /64", () => {
  const caps = new Caps({ perKey: 1, total: 10, windowMs: 10, now: () => 0 });
  assert.equal(caps.take(["ip 2001:db8::1"]), undefined);
  assert.equal(caps.take(["ip 2001:db8::ffff:2"]), 10);
  assert.equal(caps.take(["ip 2001:db8:0:1::1"]), undefined);
  assert.equal(caps.take(["ip 203.0.113.9"]), undefined);
  assert.equal(caps.take(["ip ::ffff:203.0.113.9"]), 10);
});

test("impossible caps are refused", () => {
  const good = { perKey: 1, total: 1, windowMs: 1, keysMax: 1 };
  for (const name of Object.keys(good)) assert.throws(() => new Caps({ ...good, [name]: 0 }), Misconfigured);
});

const proxies = new TrustedProxies(["10.0.0.0/8", "2001:db8:ffff::/48"]);

test("i_xff: the first from the right that is no proxy", () => {
  const cases: [string, string | undefined, string][] = [
    ["203.0.113.5", undefined, "203.0.113.5"],
    ["203.0.113.5", "198.51.100.1", "203.0.113.5"],
    ["203.0.113.5", "nonsense", "203.0.113.5"],
    ["10.0.0.1", undefined, "10.0.0.1"],
    ["10.0.0.1", "198.51.100.1", "198.51.100.1"],
    ["10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"],
    ["10.0.0.1", "nonsense, 198.51.100.1, 10.0.0.2", "198.51.100.1"],
    ["10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"],
    ["::ffff:10.0.0.1", "198.51.100.1:4711", "198.51.100.1"],
    ["10.0.0.1", "[2001:db8::1]:443", "2001:db8::1"],
    ["2001:db8:ffff::1", "[2001:db8::1]", "2001:db8::1"],
    ["2001:db8:ffff:1:2:3:4:5", "2001:DB8::1", "2001:db8::1"],
    ["2001:db8:fffe::1", "198.51.100.1", "2001:db8:fffe::1"],
    ["10.0.0.1", "::ffff:198.51.100.1", "198.51.100.1"],
    ["10.0.0.1", "::ffff:c633:6401", "198.51.100.1"],
  ];
  for (const [peer, chain, client] of cases) assert.equal(proxies.client(peer, chain), client);
});

test("i_xff: a chain that cannot be read is refused", () => {
  const chains = ["", "unknown", "198.51.100.1, x", "198.51.100.1:99999", "fe80::1%eth0", "[1.1.1.1]", "1,".repeat(251)];
  for (const chain of chains) assert.throws(() => proxies.client("10.0.0.1", chain), BadChain, chain);
});

test("a Unix socket is trusted only if it is named; a wrong network is refused", () => {
  assert.throws(() => proxies.client(undefined, "198.51.100.1"), /unix/);
  assert.equal(new TrustedProxies(["unix"]).client(undefined, "198.51.100.1"), "198.51.100.1");
  for (const wrong of ["10.0.0.0/99", "10.0.0.0/", "ten", "10.0.0.0/-1", "::/129"]) {
    assert.throws(() => new TrustedProxies([wrong]), Misconfigured, wrong);
  }
  assert.equal(new TrustedProxies(["::ffff:10.0.0.0/104"]).trusts("10.9.9.9"), true);
});
