package fsstore.interop;

import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQClientException;

/** Waiting for the name server: a topic that a broker just made is not known there at once. */
final class Routes {
    private static final int TRIES = 600;
    private static final long PAUSE_MS = 100;

    private Routes() {
    }

    /** What {@code send} answers, tried again while its topic has no route: then nothing was sent. */
    static <T> T await(Callable<T> send) throws Exception {
        for (int tries = 0;; tries++) {
            try {
                return send.call();
            } catch (MQClientException error) {
                if (tries == TRIES || !hasNoRoute(error)) {
                    throw error;
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static boolean hasNoRoute(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).contains("No route info")) {
                return true;
            }
        }
        return false;
    }
}
