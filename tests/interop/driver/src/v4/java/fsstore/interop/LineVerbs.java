package fsstore.interop;

import com.google.gson.JsonObject;
import org.apache.rocketmq.broker.BrokerController;

/** What only this line of RocketMQ can do: nothing. */
final class LineVerbs {
    JsonObject carryOut(String verb, JsonObject request, BrokerController broker) {
        throw new IllegalArgumentException("no such verb of 4.9: " + verb);
    }
}
