// node-redis: streams, pools, transactions, channels in RESP2 and RESP3, and its client-side cache.

const assert = require("node:assert");
const { after, beforeEach, test } = require("node:test");
const redis = require("redis");

const PORT = Number(process.env.REDIS_PORT);
const URL = `redis://127.0.0.1:${PORT}`;
const closing = [];
const nodeRedis = async (o = {}) => {
  const c = redis.createClient({ url: URL, ...o });
  c.on("error", () => {});
  await c.connect();
  closing.push(() => c.destroy());
  return c;
};
const pause = (ms) => new Promise((r) => setTimeout(r, ms));
async function until(f) {
  for (let i = 0; i < 500; i++) {
    if (await f()) return;
    await pause(20);
  }
  assert.fail("never");
}
beforeEach(async () => {
  const c = await nodeRedis();
  await c.flushAll();
});
after(async () => {
  for (const c of closing) await c();
  setTimeout(() => process.exit(), 500).unref();
});

for (const RESP of [2, 3])
  test(`node-redis RESP${RESP}: streams, pools, scripts, transactions, pub/sub`, async () => {
    const c = await nodeRedis({ RESP });
    await c.set("a", "1", { expiration: { type: "EX", value: 10 } });
    assert.strictEqual(await c.get("a"), "1");
    assert((await c.ttl("a")) > 5);
    const id = await c.xAdd("s", "*", { f: "v" });
    await c.xGroupCreate("s", "g", "0");
    const r = await c.xReadGroup("g", "c", { key: "s", id: ">" }, { COUNT: 1, BLOCK: 10 });
    assert.strictEqual(r[0].messages[0].id, id);
    const p = await c.xPending("s", "g");
    assert.strictEqual(p.pending, 1);
    assert.deepStrictEqual(
      p.consumers.map((x) => x.name),
      ["c"],
    );
    assert.strictEqual((await c.xPendingRange("s", "g", "-", "+", 5))[0].consumer, "c");
    const au = await c.xAutoClaim("s", "g", "d", 0, "0");
    assert.strictEqual(au.messages[0].id, id);
    assert.strictEqual((await c.xInfoStream("s")).length, 1);
    assert.strictEqual((await c.xInfoGroups("s"))[0].name, "g");
    assert.strictEqual((await c.xInfoConsumers("s", "g")).length, 2);
    assert.strictEqual(await c.xAck("s", "g", id), 1);
    assert.strictEqual((await c.xRange("s", "-", "+"))[0].message.f, "v");
    assert.deepStrictEqual(await c.multi().incr("n").incr("n").exec(), [1, 2]);
    await c.watch("n");
    await c.incr("n");
    await assert.rejects(c.multi().get("n").exec(), redis.WatchError);
    const sub = c.duplicate();
    await sub.connect();
    closing.push(() => sub.destroy());
    const got = [];
    await sub.subscribe("ch", (m) => got.push(m));
    await sub.pSubscribe("c*", (m) => got.push(m));
    await sub.sSubscribe("ch", (m) => got.push("s" + m));
    await c.publish("ch", "x");
    await c.sPublish("ch", "y");
    await until(() => got.length === 3);
    await sub.unsubscribe();
    await sub.pUnsubscribe();
    await sub.sUnsubscribe("ch");
    assert.strictEqual(RESP === 3 ? await sub.get("a") : "1", "1");
    const pool = redis.createClientPool({ url: URL, RESP }, { maximum: 4 });
    await pool.connect();
    await Promise.all(Array.from({ length: 100 }, () => pool.incr("pool")));
    assert.strictEqual(await pool.get("pool"), "100");
    await pool.execute(async (k) => {
      await k.watch("pool");
      await k.multi().set("pool", 1).exec();
    });
    pool.destroy();
    const found = [];
    for await (const keys of c.scanIterator({ MATCH: "p*" })) found.push(...keys);
    assert.deepStrictEqual(found, ["pool"]);
    assert.strictEqual((await c.clientInfo()).resp, RESP);
    await c.clientSetName("me");
    assert.strictEqual(await c.clientGetName(), "me");
    await c.info();
    await c.memoryUsage("a");
    await c.commandGetKeys(["SET", "a", "b"]);
    await c.commandInfo(["get", "nope"]);
    await c.configGet("max*");
    await c.objectEncoding("a");
    await c.slowLogGet?.();
    await c.latencyDoctor();
    await c.functionList();
    await c.aclList();
    await c.clientList();
    await c.clientTrackingInfo();
    await c.pubSubNumSub(["ch"]);
    await c.scriptExists(["a"]);
    await c.dump("a");
    await c.copy("a", "b");
    await c.lastSave();
    await c.time();
    await c.role();
    await c.aclLog();
    await c.clientKill({ filter: "ID", id: "99999" });
    await c.latencyHistory("x").catch(() => 0);
    await c.memoryStats();
    await c.commandDocs?.();
    await c.commandList();
    await c.commandCount();
    await c.xInfoStream("s", {});
    await c.hello(RESP);
  });

test("node-redis client-side cache", async () => {
  const { BasicClientSideCache } = redis;
  const cache = new BasicClientSideCache({ maxEntries: 100, ttl: 0 });
  const c = await nodeRedis({ RESP: 3, clientSideCache: cache });
  const o = await nodeRedis();
  await o.set("k", "1");
  for (let i = 0; i < 3; i++) assert.strictEqual(await c.get("k"), "1");
  assert.strictEqual(cache.stats().hitCount, 2);
  await o.set("k", "2");
  await until(async () => (await c.get("k")) === "2");
  await o.xAdd("s", "1-1", { a: "b" });
  assert.strictEqual(await c.xLen("s"), 1);
  await o.xAdd("s", "2-1", { a: "b" });
  await until(async () => (await c.xLen("s")) === 2);
  await o.flushAll();
  await until(async () => (await c.get("k")) === null);
});
