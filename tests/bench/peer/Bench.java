package fsstore.interop;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * RocketMQ's side of the benchmark. The loops are here, in Java, so that nothing but RocketMQ is on the clock: a request is
 * a JSON object a line, and its answer has {@code seconds}. It stands on the interop driver's classes.
 */
public final class Bench {
    private static final int BODY_BYTES = 256;
    private static final int MESSAGES_A_READ = 32;
    private static final int QUERY_LIMIT = 64;
    private static final byte[] POOL = pool();

    private final Map<String, DefaultMessageStore> stores = new HashMap<>();
    private long touched; // what reading adds up, so that nothing read can be left out

    private Bench() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        LogTap tap = LogTap.install();
        Bench bench = new Bench();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(bench.answer(JsonParser.parseString(line).getAsJsonObject()));
            answers.flush();
            tap.drain();
        }
        System.exit(0);
    }

    private JsonObject answer(JsonObject request) {
        JsonObject answer = new JsonObject();
        try {
            answer.addProperty("seconds", carryOut(request.get("verb").getAsString(), request) / 1e9);
        } catch (Throwable error) { // an answer is owed whatever happened
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            answer.addProperty("error", trace.toString());
        }
        return answer;
    }

    private long carryOut(String verb, JsonObject request) throws Exception {
        switch (verb) {
            case "open": return open(request);
            case "put": return put(request);
            case "query": return query(request);
            case "read": return read(request);
            case "close": return close(request);
            default: throw new IllegalArgumentException("no such verb: " + verb);
        }
    }

    /** Opens the directory {@code path}; answers how long load() took, which recovers. */
    private long open(JsonObject request) throws Exception {
        String path = request.get("path").getAsString();
        Properties properties = new Properties();
        request.getAsJsonObject("config").entrySet().forEach(
            entry -> properties.setProperty(entry.getKey(), entry.getValue().getAsString()));
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(path);
        config.setStorePathCommitLog(path + "/commitlog");
        DefaultMessageStore store = Line.store(config, new BrokerConfig());
        long began = System.nanoTime();
        boolean loaded = store.load();
        long took = System.nanoTime() - began;
        if (!loaded) {
            store.shutdown();
            throw new IllegalStateException("load() returned false");
        }
        Line.keepOnLoopback(store);
        store.start();
        stores.put(path, store);
        return took;
    }

    private long close(JsonObject request) {
        DefaultMessageStore store = stores.remove(request.get("path").getAsString());
        long began = System.nanoTime();
        store.shutdown();
        return System.nanoTime() - began;
    }

    private DefaultMessageStore store(JsonObject request) {
        return stores.get(request.get("path").getAsString());
    }

    /** Puts messages {@code first} … one after the other into {@code queues} in turn, and waits until all are dispatched. */
    private long put(JsonObject request) throws Exception {
        DefaultMessageStore store = store(request);
        String topic = request.get("topic").getAsString();
        boolean keys = request.get("keys").getAsBoolean();
        long first = request.get("first").getAsLong();
        long count = request.get("count").getAsLong();
        long queues = request.get("queues").getAsLong();
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        long began = System.nanoTime();
        for (long number = first; number < first + count; number++) {
            MessageExt message = Line.message(properties(number, keys));
            message.setTopic(topic);
            message.setQueueId((int) (number % queues));
            message.setBody(body(number));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            if (Line.put(store, message).getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("a put was refused");
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.onSpinWait();
        }
        return System.nanoTime() - began;
    }

    private static String properties(long number, boolean keys) {
        String tags = "TAGS" + MessageDecoder.NAME_VALUE_SEPARATOR + "paid" + MessageDecoder.PROPERTY_SEPARATOR;
        return keys ? "KEYS" + MessageDecoder.NAME_VALUE_SEPARATOR + key(number) + MessageDecoder.PROPERTY_SEPARATOR + tags : tags;
    }

    private static String key(long number) {
        String digits = Long.toString(number);
        return "K000000000".substring(0, 10 - digits.length()) + digits;
    }

    private static byte[] body(long number) {
        byte[] body = new byte[BODY_BYTES];
        System.arraycopy(POOL, (int) (number * 37 % (POOL.length - BODY_BYTES)), body, 0, BODY_BYTES);
        return body;
    }

    private static byte[] pool() {
        byte[] letters = "abcdefghijklmnopqrstuvwxyz      ".getBytes(StandardCharsets.US_ASCII);
        byte[] pool = new byte[(1 << 20) + BODY_BYTES];
        Random random = new Random(6);
        for (int i = 0; i < pool.length; i++) {
            pool[i] = letters[random.nextInt(letters.length)];
        }
        return pool;
    }

    /** Queries the keys of messages {@code numbers}, one after the other; each must be found. */
    private long query(JsonObject request) {
        DefaultMessageStore store = store(request);
        String topic = request.get("topic").getAsString();
        long[] numbers = new com.google.gson.Gson().fromJson(request.get("numbers"), long[].class);
        long until = System.currentTimeMillis() + 86_400_000L;
        long began = System.nanoTime();
        for (long number : numbers) {
            QueryMessageResult found = store.queryMessage(topic, key(number), QUERY_LIMIT, 0, until);
            if (found.getMessageBufferList().isEmpty()) {
                throw new IllegalStateException("not found: " + key(number));
            }
            found.release();
        }
        return System.nanoTime() - began;
    }

    /** Reads {@code count} messages of queue 0 as a broker and its client do, and touches body, keys and tags. */
    private long read(JsonObject request) {
        DefaultMessageStore store = store(request);
        String topic = request.get("topic").getAsString();
        long count = request.get("count").getAsLong();
        long began = System.nanoTime();
        for (long next = 0; next < count;) {
            GetMessageResult result = store.getMessage("bench", topic, 0, next, MESSAGES_A_READ, null);
            for (ByteBuffer record : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(record, true, true);
                touched += message.getBody()[0] + message.getKeys().length() + message.getTags().length();
            }
            if (result.getNextBeginOffset() <= next) {
                throw new IllegalStateException("getMessage stands still: " + result.getStatus());
            }
            next = result.getNextBeginOffset();
            result.release();
        }
        return System.nanoTime() - began;
    }
}
