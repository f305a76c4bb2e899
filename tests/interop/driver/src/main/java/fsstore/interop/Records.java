package fsstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages to and from JSON. Bodies travel as Base64 on the way in, as length and SHA-256 on the way out. */
final class Records {
    private static final int COMPRESSED = 1;
    private static final int COMPRESSION_LEVEL = 5;
    private static final int ITEM_BYTES = 22; // of a batch's item, beside its body and properties

    private Records() {
    }

    /** A message to put, from the fields of a request. Its property string keeps the request's order. */
    static MessageExt message(JsonObject fields) throws Exception {
        Map<String, String> properties = properties(fields);
        MessageExt message = Line.message(propertiesString(properties, has(fields, "trailing_separator")));
        fill(message, fields);
        MessageAccessor.setProperties(message, properties);
        message.setBody(body(fields));
        if (has(fields, "compress")) {
            CompressionType type = CompressionType.valueOf(fields.get("compress").getAsString());
            message.setBody(CompressorFactory.getCompressor(type).compress(message.getBody(), COMPRESSION_LEVEL));
            message.setSysFlag(message.getSysFlag() | COMPRESSED | type.getCompressionFlag());
        }
        return message;
    }

    /** A batch to put: the body is what a client of this line would have sent, or with {@code plain_items} of any. */
    static MessageExtBatch batch(JsonObject fields) throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, fields);
        MessageAccessor.setProperties(batch, properties(fields));
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (JsonElement element : fields.getAsJsonArray("items")) {
            JsonObject item = element.getAsJsonObject();
            body.write(has(fields, "plain_items") ? plainItem(item) : clientItem(batch.getTopic(), item));
        }
        batch.setBody(body.toByteArray());
        return batch;
    }

    private static byte[] clientItem(String topic, JsonObject item) {
        Message message = new Message(topic, body(item));
        message.setFlag(number(item, "flag").intValue());
        MessageAccessor.setProperties(message, properties(item));
        return MessageDecoder.encodeMessage(message);
    }

    /** An item whose properties end without a separator, in the order of the request. */
    private static byte[] plainItem(JsonObject item) {
        byte[] body = body(item);
        byte[] properties = propertiesString(properties(item), false).getBytes(StandardCharsets.UTF_8);
        ByteBuffer encoded = ByteBuffer.allocate(ITEM_BYTES + body.length + properties.length);
        encoded.putInt(encoded.capacity()).putInt(0).putInt(0).putInt(number(item, "flag").intValue());
        encoded.putInt(body.length).put(body).putShort((short) properties.length).put(properties);
        return encoded.array();
    }

    private static void fill(MessageExt message, JsonObject fields) throws Exception {
        message.setTopic(fields.get("topic").getAsString());
        message.setQueueId(number(fields, "queue").intValue());
        message.setFlag(number(fields, "flag").intValue());
        message.setSysFlag(number(fields, "sys_flag").intValue());
        message.setBornTimestamp(number(fields, "born_time_ms").longValue());
        message.setBornHost(host(fields.get("born_host").getAsString()));
        message.setStoreHost(host(fields.get("store_host").getAsString()));
        message.setReconsumeTimes(number(fields, "reconsume_times").intValue());
        message.setPreparedTransactionOffset(number(fields, "prepared_transaction_offset").longValue());
    }

    private static boolean has(JsonObject fields, String name) {
        return fields.has(name) && !fields.get(name).isJsonNull();
    }

    private static Number number(JsonObject fields, String name) {
        return fields.has(name) ? fields.get(name).getAsNumber() : Integer.valueOf(0);
    }

    private static byte[] body(JsonObject fields) {
        return Base64.getDecoder().decode(fields.get("body").getAsString());
    }

    private static Map<String, String> properties(JsonObject fields) {
        Map<String, String> properties = new LinkedHashMap<>();
        if (fields.has("properties")) {
            for (JsonElement pair : fields.getAsJsonArray("properties")) {
                JsonArray both = pair.getAsJsonArray();
                properties.put(both.get(0).getAsString(), both.get(1).getAsString());
            }
        }
        return properties;
    }

    private static String propertiesString(Map<String, String> properties, boolean trailingSeparator) {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, String> property : properties.entrySet()) {
            if (text.length() > 0) {
                text.append(MessageDecoder.PROPERTY_SEPARATOR);
            }
            text.append(property.getKey()).append(MessageDecoder.NAME_VALUE_SEPARATOR).append(property.getValue());
        }
        return trailingSeparator && text.length() > 0 ? text.append(MessageDecoder.PROPERTY_SEPARATOR).toString() : text.toString();
    }

    private static InetSocketAddress host(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }

    /** Every field of one record of the commit log, as RocketMQ's own decoder reads it. */
    static JsonObject decoded(ByteBuffer record) throws Exception {
        MessageExt stored = MessageDecoder.decode(record.duplicate(), true, false);
        MessageExt message = MessageDecoder.decode(record.duplicate(), true, true);
        JsonObject fields = new JsonObject();
        fields.addProperty("topic", message.getTopic());
        fields.addProperty("queue", message.getQueueId());
        fields.addProperty("queue_offset", message.getQueueOffset());
        fields.addProperty("physical_offset", message.getCommitLogOffset());
        fields.addProperty("store_size", message.getStoreSize());
        fields.addProperty("flag", message.getFlag());
        fields.addProperty("sys_flag", stored.getSysFlag()); // 5.x takes the compression out when it decompresses
        fields.addProperty("born_time_ms", message.getBornTimestamp());
        fields.addProperty("born_host", host(message.getBornHost()));
        fields.addProperty("store_time_ms", message.getStoreTimestamp());
        fields.addProperty("store_host", host(message.getStoreHost()));
        fields.addProperty("reconsume_times", message.getReconsumeTimes());
        fields.addProperty("prepared_transaction_offset", message.getPreparedTransactionOffset());
        fields.addProperty("body_crc", message.getBodyCRC());
        fields.addProperty("msg_id", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        fields.add("stored_body", digest(stored.getBody()));
        fields.add("body", digest(message.getBody()));
        JsonObject properties = new JsonObject();
        if (message.getProperties() != null) { // a record without properties
            message.getProperties().forEach(properties::addProperty);
        }
        fields.add("properties", properties);
        return fields;
    }

    /** A message as a client was handed it from {@code queue}, in the words of tests/data/golden55. */
    static JsonObject pulled(MessageQueue queue, MessageExt message) throws Exception {
        JsonObject fields = new JsonObject();
        fields.addProperty("qt", queue.getTopic());
        fields.addProperty("q", queue.getQueueId());
        fields.addProperty("qo", message.getQueueOffset());
        fields.addProperty("topic", message.getTopic());
        fields.addProperty("mq", message.getQueueId());
        fields.addProperty("mqo", message.getQueueOffset());
        fields.addProperty("po", message.getCommitLogOffset());
        fields.addProperty("size", message.getStoreSize());
        fields.addProperty("crc", message.getBodyCRC());
        fields.addProperty("sf", message.getSysFlag());
        fields.addProperty("flag", message.getFlag());
        fields.addProperty("born", message.getBornTimestamp());
        fields.addProperty("store", message.getStoreTimestamp());
        fields.addProperty("bh", host(message.getBornHost()));
        fields.addProperty("sh", host(message.getStoreHost()));
        fields.addProperty("rc", message.getReconsumeTimes());
        fields.addProperty("pto", message.getPreparedTransactionOffset());
        JsonArray body = digest(message.getBody());
        fields.add("len", body.get(0));
        fields.add("sha", body.get(1));
        fields.addProperty("id", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        JsonObject properties = new JsonObject();
        message.getProperties().forEach(properties::addProperty);
        fields.add("props", properties);
        return fields;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        StringBuilder text = new StringBuilder();
        for (byte octet : host.getAddress().getAddress()) {
            text.append(String.format("%02x", octet));
        }
        return text.append(':').append(host.getPort()).toString();
    }

    private static JsonArray digest(byte[] body) throws Exception {
        byte[] bytes = body == null ? new byte[0] : body;
        StringBuilder hex = new StringBuilder();
        for (byte octet : MessageDigest.getInstance("SHA-256").digest(bytes)) {
            hex.append(String.format("%02x", octet));
        }
        JsonArray digest = new JsonArray();
        digest.add(bytes.length);
        digest.add(hex.toString());
        return digest;
    }
}
