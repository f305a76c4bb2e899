package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Message stores that this process has open, by the name that the request gave them. */
final class Stores {
    private static final int ENTRY_BYTES = 20;
    private static final int MESSAGES_A_READ = 32;
    private static final long SETTLE_POLL_MS = 5;
    private static final long SETTLE_LIMIT_MS = 120_000;

    private final Map<String, DefaultMessageStore> open = new HashMap<>();

    /** Opens the directory {@code path} with {@code config} (MessageStoreConfig's own names). */
    JsonObject open(JsonObject request) throws Exception {
        Properties properties = new Properties();
        request.getAsJsonObject("config").entrySet().forEach(
            entry -> properties.setProperty(entry.getKey(), entry.getValue().getAsString()));
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setHaListenPort(0); // nobody replicates a store alone
        config.setStorePathRootDir(request.get("path").getAsString());
        config.setStorePathCommitLog(request.get("path").getAsString() + "/commitlog");
        BrokerConfig broker = new BrokerConfig();
        MixAll.properties2Object(properties, broker);
        DefaultMessageStore store = Line.store(config, broker);
        if (!store.load()) {
            store.shutdown();
            throw new IllegalStateException("load() returned false");
        }
        Line.keepOnLoopback(store);
        store.start();
        open.put(request.get("store").getAsString(), store);
        return new JsonObject();
    }

    private DefaultMessageStore store(JsonObject request) {
        return open.get(request.get("store").getAsString());
    }

    /** Puts {@code messages} in order; answers one result each. */
    JsonObject put(JsonObject request) throws Exception {
        JsonArray results = new JsonArray();
        for (JsonElement element : request.getAsJsonArray("messages")) {
            JsonObject fields = element.getAsJsonObject();
            PutMessageResult result = fields.has("items")
                ? store(request).putMessages(Records.batch(fields))
                : Line.put(store(request), Records.message(fields));
            results.add(result(result));
        }
        JsonObject answer = new JsonObject();
        answer.add("results", results);
        return answer;
    }

    private static JsonObject result(PutMessageResult put) {
        JsonObject fields = new JsonObject();
        fields.addProperty("status", put.getPutMessageStatus().name());
        if (put.getAppendMessageResult() != null) {
            fields.addProperty("physical_offset", put.getAppendMessageResult().getWroteOffset());
            fields.addProperty("store_size", put.getAppendMessageResult().getWroteBytes());
            fields.addProperty("queue_offset", put.getAppendMessageResult().getLogicsOffset());
            fields.addProperty("store_time_ms", put.getAppendMessageResult().getStoreTimestamp());
            fields.addProperty("msg_id", put.getAppendMessageResult().getMsgId());
        }
        return fields;
    }

    /** Returns when every message that was put is in its consume queue and in the index. */
    JsonObject settle(JsonObject request) throws Exception {
        long limit = System.currentTimeMillis() + SETTLE_LIMIT_MS;
        while (store(request).dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > limit) {
                throw new IllegalStateException("dispatch is still behind");
            }
            Thread.sleep(SETTLE_POLL_MS);
        }
        return new JsonObject();
    }

    /** Every queue's bounds, and every message that getMessage delivers, with its consume queue entry. */
    JsonObject dump(JsonObject request) throws Exception {
        settle(request);
        DefaultMessageStore store = store(request);
        JsonObject answer = new JsonObject();
        answer.addProperty("min_physical_offset", store.getMinPhyOffset());
        answer.addProperty("max_physical_offset", store.getMaxPhyOffset());
        JsonArray queues = new JsonArray();
        JsonArray messages = new JsonArray();
        for (Map.Entry<String, ? extends Map<Integer, ?>> topic : store.getConsumeQueueTable().entrySet()) {
            for (int queue : topic.getValue().keySet()) {
                queues.add(dump(store, topic.getKey(), queue, messages));
            }
        }
        answer.add("queues", queues);
        answer.add("messages", messages);
        return answer;
    }

    private JsonObject dump(DefaultMessageStore store, String topic, int queue, JsonArray messages) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queue);
        long max = store.getMaxOffsetInQueue(topic, queue);
        JsonObject bounds = new JsonObject();
        bounds.addProperty("topic", topic);
        bounds.addProperty("queue", queue);
        bounds.addProperty("min_offset", min);
        bounds.addProperty("max_offset", max);
        long next = min;
        while (next < max) {
            GetMessageResult result = store.getMessage("interop", topic, queue, next, MESSAGES_A_READ, null);
            for (ByteBuffer record : result.getMessageBufferList()) {
                JsonObject message = Records.decoded(record);
                message.addProperty("queue_topic", topic);
                message.addProperty("queue_id", queue);
                messages.add(message);
            }
            long previous = next;
            next = result.getNextBeginOffset();
            result.release();
            if (next <= previous) {
                throw new IllegalStateException("getMessage stands still: " + result.getStatus() + " at " + previous);
            }
        }
        bounds.add("tags_codes", tagsCodes(store, topic, queue, min, max));
        return bounds;
    }

    private static JsonArray tagsCodes(DefaultMessageStore store, String topic, int queue, long min, long max) {
        JsonArray codes = new JsonArray();
        for (long index = min; index < max;) {
            SelectMappedBufferResult entries = Line.entries(store, topic, queue, index);
            ByteBuffer bytes = entries.getByteBuffer();
            for (; bytes.remaining() >= ENTRY_BYTES && index < max; index++) {
                bytes.getLong();
                bytes.getInt();
                codes.add(bytes.getLong());
            }
            entries.release();
        }
        return codes;
    }

    /** For each of {@code queries}: the physical offsets that queryMessage found, in its order. */
    JsonObject query(JsonObject request) {
        return query(store(request), request);
    }

    /** The same of any open store. A query with {@code tags} asks by tag, which 4.9 can't. */
    static JsonObject query(DefaultMessageStore store, JsonObject request) {
        JsonArray results = new JsonArray();
        for (JsonElement element : request.getAsJsonArray("queries")) {
            JsonObject query = element.getAsJsonObject();
            String topic = query.get("topic").getAsString();
            int limit = query.get("limit").getAsInt();
            long begin = query.get("begin_ms").getAsLong();
            long end = query.get("end_ms").getAsLong();
            QueryMessageResult found = query.has("tags")
                ? Line.queryByTag(store, topic, query.get("tags").getAsString(), limit, begin, end)
                : store.queryMessage(topic, query.get("key").getAsString(), limit, begin, end);
            JsonArray offsets = new JsonArray();
            for (ByteBuffer record : found.getMessageBufferList()) {
                offsets.add(record.getLong(record.position() + 28)); // a record's own physical offset
            }
            found.release();
            results.add(offsets);
        }
        JsonObject answer = new JsonObject();
        answer.add("results", results);
        return answer;
    }

    /** For each of {@code times}: the queue offset that getOffsetInQueueByTime answers. */
    JsonObject offsetAt(JsonObject request) {
        JsonArray results = new JsonArray();
        for (JsonElement time : request.getAsJsonArray("times")) {
            results.add(store(request).getOffsetInQueueByTime(
                request.get("topic").getAsString(), request.get("queue").getAsInt(), time.getAsLong()));
        }
        JsonObject answer = new JsonObject();
        answer.add("results", results);
        return answer;
    }

    JsonObject close(JsonObject request) {
        open.remove(request.get("store").getAsString()).shutdown();
        return new JsonObject();
    }
}
