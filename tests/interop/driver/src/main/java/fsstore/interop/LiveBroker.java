package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A name server and a broker of this process, both on loopback. */
final class LiveBroker {
    private static final int ENTRY_BYTES = 20;
    private static final int REGISTER_TRIES = 200;
    private static final long REGISTER_PAUSE_MS = 50;

    private NamesrvController names;
    private BrokerController broker;
    private DefaultMessageStore store;
    private final Latencies puts = new Latencies();

    /**
     * Starts both: {@code path} of the store, {@code broker_port}, {@code config} in a broker's own names; the name server
     * on {@code names_port}, unless {@code shares_names}: then another process has it there.
     */
    JsonObject start(JsonObject request) throws Exception {
        Properties properties = new Properties();
        request.getAsJsonObject("config").entrySet().forEach(
            entry -> properties.setProperty(entry.getKey(), entry.getValue().getAsString()));
        if (!request.get("shares_names").getAsBoolean()) {
            startNames(request.get("names_port").getAsInt());
        }
        properties.setProperty("namesrvAddr", "127.0.0.1:" + request.get("names_port").getAsInt());
        startBroker(request.get("path").getAsString(), request.get("broker_port").getAsInt(), properties);
        return new JsonObject();
    }

    private void startNames(int port) throws Exception {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        names = new NamesrvController(new NamesrvConfig(), server);
        check(names.initialize(), "name server");
        Loopback.bindServers(names);
        names.start();
    }

    private void startBroker(String path, int port, Properties properties) throws Exception {
        properties.setProperty("brokerIP1", "127.0.0.1");
        properties.setProperty("brokerIP2", "127.0.0.1");
        NettyServerConfig server = new NettyServerConfig();
        NettyClientConfig client = new NettyClientConfig();
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig config = new BrokerConfig();
        for (Object target : new Object[] {server, client, storeConfig, config}) {
            MixAll.properties2Object(properties, target);
        }
        server.setListenPort(port);
        storeConfig.setHaListenPort(port + 1);
        storeConfig.setStorePathRootDir(path);
        if (!properties.containsKey("storePathCommitLog")) {
            storeConfig.setStorePathCommitLog(path + "/commitlog");
        }
        broker = new BrokerController(config, server, client, storeConfig);
        check(broker.initialize(), "broker");
        Loopback.bindServers(broker);
        store = (DefaultMessageStore) broker.getMessageStore();
        Line.keepOnLoopback(broker, store);
        Loopback.write(broker, "messageStore", TimedStore.around(store, puts));
        broker.start();
        for (int tries = 0; names != null && tries < REGISTER_TRIES && !isRegistered(config.getBrokerName()); tries++) {
            Thread.sleep(REGISTER_PAUSE_MS); // a broker whose connection comes too late would wait for ten seconds
            broker.registerBrokerAll(false, false, true);
        }
        Line.awaitRole(broker);
    }

    private boolean isRegistered(String name) {
        return new String(names.getRouteInfoManager().getAllClusterInfo().encode(), StandardCharsets.UTF_8).contains(name);
    }

    private static void check(boolean initialized, String what) {
        if (!initialized) {
            throw new IllegalStateException("the " + what + " did not initialize");
        }
    }

    /** Makes {@code topic} with {@code queues} queues and {@code attributes}, and tells the name server. */
    JsonObject topic(JsonObject request) {
        int queues = request.get("queues").getAsInt();
        TopicConfig topic = new TopicConfig(request.get("topic").getAsString(), queues, queues, 6);
        request.getAsJsonObject("attributes").entrySet().forEach(
            entry -> Line.setAttribute(topic, entry.getKey(), entry.getValue().getAsString()));
        broker.getTopicConfigManager().updateTopicConfig(topic);
        broker.registerBrokerAll(false, false, true);
        return new JsonObject();
    }

    /** As {@link Stores#query}, while the broker runs. */
    JsonObject query(JsonObject request) {
        return Stores.query(store, request);
    }

    /** Has the broker drop log files, and what points at them, that nobody wrote to for {@code older_than_ms}. */
    JsonObject expire(JsonObject request) throws Exception {
        int files = store.getCommitLog().deleteExpiredFile(request.get("older_than_ms").getAsLong(), 1, 120_000, false);
        Method clean = DefaultMessageStore.class.getDeclaredMethod("cleanFilesPeriodically");
        clean.setAccessible(true);
        clean.invoke(store);
        JsonObject answer = new JsonObject();
        answer.addProperty("files", files);
        return answer;
    }

    /** How long puts took since the last time somebody asked, and where the log ends. */
    JsonObject figures() {
        JsonObject answer = new JsonObject();
        answer.add("puts", puts.figures());
        puts.clear();
        answer.addProperty("min_physical_offset", store.getMinPhyOffset());
        answer.addProperty("max_physical_offset", store.getMaxPhyOffset());
        return answer;
    }

    /** For each of {@code topic}'s {@code queues}: queue offset of the oldest message that the log still has, and the next. */
    JsonObject bounds(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        JsonArray bounds = new JsonArray();
        for (int queue = 0; queue < request.get("queues").getAsInt(); queue++) {
            long max = store.getMaxOffsetInQueue(topic, queue);
            JsonArray pair = new JsonArray();
            pair.add(oldest(topic, queue, max));
            pair.add(max);
            bounds.add(pair);
        }
        JsonObject answer = new JsonObject();
        answer.add("bounds", bounds);
        return answer;
    }

    /** From the queue's minimum on, which lags behind the log's: a broker moves it when it cleans its queues. */
    private long oldest(String topic, int queue, long max) {
        for (long index = store.getMinOffsetInQueue(topic, queue); index < max;) {
            SelectMappedBufferResult entries = Line.entries(store, topic, queue, index);
            try {
                for (ByteBuffer bytes = entries.getByteBuffer(); bytes.hasRemaining(); index++) {
                    if (bytes.getLong() >= store.getMinPhyOffset()) {
                        return index;
                    }
                    bytes.position(bytes.position() + ENTRY_BYTES - Long.BYTES);
                }
            } finally {
                entries.release();
            }
        }
        return max;
    }

    /** Where each group stands in each {@code topic@group}, queue by queue. */
    JsonObject offsets() {
        JsonObject answer = new JsonObject();
        broker.getConsumerOffsetManager().getOffsetTable().forEach((topicAtGroup, queues) -> {
            JsonObject byQueue = new JsonObject();
            queues.forEach((queue, offset) -> byQueue.addProperty(String.valueOf(queue), offset));
            answer.add(topicAtGroup, byQueue);
        });
        return answer;
    }

    BrokerController controller() {
        return broker;
    }

    /** Ends both, cleanly. */
    JsonObject stop() throws Exception {
        try (Hurry hurry = new Hurry("NettyEventExecutor", "PopReviveService")) {
            broker.shutdown();
            if (names != null) {
                names.shutdown();
                names = null;
            }
        }
        return new JsonObject();
    }
}
