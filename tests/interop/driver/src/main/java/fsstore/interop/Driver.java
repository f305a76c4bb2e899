package fsstore.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * A real RocketMQ at the end of a pipe: one JSON object a line in, one JSON object a line out.
 *
 * <p>A request has {@code verb}; an answer has {@code error} with a stack trace when the verb failed, and {@code log} with
 * what RocketMQ logged at WARN or ERROR since the answer before. End of input ends the process.
 */
public final class Driver {
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

    private final LogTap tap = LogTap.install();
    private final Stores stores = new Stores();
    private final LiveBroker broker = new LiveBroker();
    private final Clients clients = new Clients();
    private final LineVerbs line = new LineVerbs();

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // what libraries print is no answer
        // the programs that start RocketMQ say this first: servers take a peer without a version for an ancient one
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, String.valueOf(MQVersion.CURRENT_VERSION));
        new Driver().serve(new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)), answers);
        System.exit(0); // RocketMQ leaves threads of its own behind
    }

    private void serve(BufferedReader requests, PrintStream answers) throws Exception {
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(GSON.toJson(answer(JsonParser.parseString(line).getAsJsonObject())));
            answers.flush();
        }
    }

    private JsonObject answer(JsonObject request) {
        JsonObject answer;
        try {
            answer = carryOut(request.get("verb").getAsString(), request);
        } catch (Throwable error) { // an answer is owed whatever happened
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            answer = new JsonObject();
            answer.addProperty("error", trace.toString());
        }
        answer.add("log", GSON.toJsonTree(tap.drain()));
        return answer;
    }

    private JsonObject carryOut(String verb, JsonObject request) throws Exception {
        switch (verb) {
            case "hello": return new JsonObject();
            case "open": return stores.open(request);
            case "put": return stores.put(request);
            case "settle": return stores.settle(request);
            case "dump": return stores.dump(request);
            case "query": return stores.query(request);
            case "offset_at": return stores.offsetAt(request);
            case "close": return stores.close(request);
            case "broker_start": return broker.start(request);
            case "broker_topic": return broker.topic(request);
            case "broker_query": return broker.query(request);
            case "broker_bounds": return broker.bounds(request);
            case "broker_offsets": return broker.offsets();
            case "broker_stop": return broker.stop();
            case "broker_figures": return broker.figures();
            case "broker_expire": return broker.expire(request);
            case "delete_topic": return clients.deleteTopic(request);
            case "send": return clients.send(request);
            case "send_transactions": return clients.sendTransactions(request);
            case "produce": return clients.produce(request);
            case "produced": return clients.produced();
            case "pull": return clients.pull(request);
            case "consume": return clients.consume(request);
            case "request_reply": return clients.requestReply(request);
            default: return line.carryOut(verb, request, broker.controller());
        }
    }
}
