// ioredis: scripts, channels, transactions, pipelines, streams.

const assert = require("node:assert");
const { after, beforeEach, test } = require("node:test");
const Redis = require("ioredis");

const PORT = Number(process.env.REDIS_PORT);
const made = [];

function connected(options = {}) {
  const client = new Redis({ port: PORT, host: "127.0.0.1", ...options });
  made.push(client);
  return client;
}

const redis = connected();
beforeEach(() => redis.flushall());
after(() => made.forEach((client) => client.disconnect()));

function next(client, event) {
  return new Promise((resolve) => client.once(event, (...words) => resolve(words)));
}

test("eval", async () => {
  assert.deepStrictEqual(await redis.eval("return {KEYS[1], ARGV[1], 3}", 1, "k", "a"), ["k", "a", 3]);
});

test("a command that is a script, by its digest and in full", async () => {
  redis.defineCommand("echo2", { numberOfKeys: 2, lua: "return {KEYS[1], KEYS[2], ARGV[1]}" });
  assert.deepStrictEqual(await redis.echo2("a", "b", "c"), ["a", "b", "c"]);
  await redis.script("FLUSH");
  assert.deepStrictEqual(await redis.echo2("a", "b", "c"), ["a", "b", "c"]);
});

test("a script with a number of keys given by the caller, and buffers", async () => {
  redis.defineCommand("first", { lua: "return {KEYS[1], #ARGV}" });
  assert.deepStrictEqual(await redis.first(1, "k", "x", "y"), ["k", 2]);
  assert.deepStrictEqual(await redis.firstBuffer(1, "k"), [Buffer.from("k"), 0]);
});

test("scripts of the options, which know that they only read", async () => {
  const client = connected({ scripts: { peek: { numberOfKeys: 1, lua: "return redis.call('get', KEYS[1])", readOnly: true } } });
  await client.set("k", "v");
  assert.strictEqual(await client.peek("k"), "v");
});

test("scripts in pipelines, also unknown ones, and in transactions", async () => {
  redis.defineCommand("plus", { numberOfKeys: 1, lua: "return redis.call('incrby', KEYS[1], ARGV[1])" });
  await redis.script("FLUSH");
  const results = await redis.pipeline().set("n", 1).plus("n", 2).plus("n", 3).get("n").exec();
  assert.deepStrictEqual(results.map(([, value]) => value), ["OK", 3, 6, "6"]);
  const block = await redis.multi().plus("n", 4).get("n").exec();
  assert.deepStrictEqual(block.map(([, value]) => value), [10, "10"]);
});

test("errors of scripts", async () => {
  await assert.rejects(redis.eval("return redis.error_reply('MINE told')", 0), /MINE told/);
  await assert.rejects(redis.eval("return redis.call('nope')", 0), /Unknown Redis command/);
  await assert.rejects(redis.eval("error('broken')", 0), /broken/);
  await assert.rejects(redis.evalsha("0".repeat(40), 0), /NOSCRIPT/);
});

test("script exists, load, flush", async () => {
  const digest = await redis.script("LOAD", "return 7");
  assert.deepStrictEqual(await redis.script("EXISTS", digest, "0".repeat(40)), [1, 0]);
  assert.strictEqual(await redis.evalsha(digest, 0), 7);
  await redis.script("FLUSH");
  assert.deepStrictEqual(await redis.script("EXISTS", digest), [0]);
});

test("functions", async () => {
  await redis.function("LOAD", "#!lua name=lib\nredis.register_function('add', function(k, a) return a[1] + a[2] end)");
  assert.strictEqual(await redis.fcall("add", 0, 2, 3), 5);
  await redis.function("DELETE", "lib");
  await assert.rejects(redis.fcall("add", 0, 2, 3), /Function not found/);
});

for (const protocol of [2, 3]) test(`publish and subscribe, RESP${protocol}`, async () => {
  const subscriber = connected({ protocol });
  assert.strictEqual(await subscriber.subscribe("news", "weather"), 2);
  const message = next(subscriber, "message");
  assert.strictEqual(await redis.publish("news", "hello"), 1);
  assert.deepStrictEqual(await message, ["news", "hello"]);
  if (protocol === 2) await assert.rejects(subscriber.set("k", "v"), /subscriber mode/);
  else assert.strictEqual(await subscriber.set("k", "v"), "OK");
  assert.strictEqual(await subscriber.unsubscribe(), 0);
  assert.strictEqual(await subscriber.set("k", "v"), "OK");
});

test("patterns, and buffers", async () => {
  const subscriber = connected();
  assert.strictEqual(await subscriber.psubscribe("n?ws"), 1);
  const message = next(subscriber, "pmessageBuffer");
  await redis.publish("news", "hello");
  assert.deepStrictEqual(await message, ["n?ws", Buffer.from("news"), Buffer.from("hello")]);
  assert.strictEqual(await subscriber.punsubscribe("n?ws"), 0);
});

test("shard channels", async () => {
  const subscriber = connected();
  await subscriber.ssubscribe("news");
  const message = next(subscriber, "smessage");
  assert.strictEqual(await redis.spublish("news", "hello"), 1);
  assert.deepStrictEqual(await message, ["news", "hello"]);
});

test("a lost connection subscribes anew", async () => {
  const subscriber = connected();
  await subscriber.subscribe("news");
  await subscriber.psubscribe("w*");
  const ready = next(subscriber, "ready");
  await redis.client("KILL", "TYPE", "PUBSUB");
  await ready;
  while ((await redis.pubsub("NUMSUB", "news"))[1] === 0 || (await redis.pubsub("NUMPAT")) === 0) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const message = next(subscriber, "message");
  await redis.publish("news", "again");
  assert.deepStrictEqual(await message, ["news", "again"]);
});

test("quit and ping while subscribed", async () => {
  const subscriber = connected();
  await subscriber.subscribe("news");
  assert.ok(await subscriber.ping());
  assert.strictEqual(await subscriber.quit(), "OK");
});

test("monitor shows commands of others", async () => {
  const monitor = await redis.monitor();
  made.push(monitor);
  const seen = new Promise((resolve) => monitor.on("monitor", (time, words) => words[0].toLowerCase() === "set" && resolve(words)));
  await redis.set("k", "v");
  assert.deepStrictEqual((await seen).slice(1), ["k", "v"]);
});

test("transactions", async () => {
  const results = await redis.multi().set("k", "v").get("k").xadd("s", "1-1", "f", "x").exec();
  assert.deepStrictEqual(results, [[null, "OK"], [null, "v"], [null, "1-1"]]);
});

test("transactions without a pipeline", async () => {
  await redis.multi({ pipeline: false });
  assert.strictEqual(await redis.set("k", "v"), "QUEUED");
  assert.deepStrictEqual(await redis.exec(), [[null, "OK"]]);
});

test("errors in transactions", async () => {
  await redis.set("k", "text");
  const results = await redis.multi().incr("k").get("k").exec();
  assert.match(results[0][0].message, /not an integer/);
  assert.strictEqual(results[1][1], "text");
  await assert.rejects(redis.multi().set("k").exec(), /EXECABORT/);
});

test("a watched key that has changed", async () => {
  const other = connected();
  await redis.watch("k");
  await other.set("k", "other");
  assert.strictEqual(await redis.multi().set("k", "mine").exec(), null);
});

test("streams with groups", async () => {
  await redis.xgroup("CREATE", "s", "g", "0", "MKSTREAM");
  const waiting = connected().xreadgroup("GROUP", "g", "c", "BLOCK", 5000, "STREAMS", "s", ">");
  const id = await redis.xadd("s", "*", "f", "x");
  assert.deepStrictEqual(await waiting, [["s", [[id, ["f", "x"]]]]]);
  assert.strictEqual(await redis.xack("s", "g", id), 1);
});

test("automatic pipelines", async () => {
  const client = connected({ enableAutoPipelining: true });
  const found = await Promise.all([...Array(100).keys()].map((n) => client.set(`k${n}`, n).then(() => client.get(`k${n}`))));
  assert.deepStrictEqual(found, [...Array(100).keys()].map(String));
});

test("lists", async () => {
  assert.strictEqual(await redis.lpush("l", 1, 2), 2);
});

test("hashes", async () => {
  assert.strictEqual(await redis.hset("h", { a: 1, b: 2 }), 2);
  assert.deepStrictEqual(await redis.hgetall("h"), { a: "1", b: "2" });
});
