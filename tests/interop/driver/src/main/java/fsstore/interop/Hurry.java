package fsstore.interop;

import java.util.Arrays;
import java.util.concurrent.TimeUnit;

/**
 * Wakes threads that RocketMQ waits for while it shuts down: each looks only every few seconds whether it is to end, and they
 * are waited for one after the other. They are interrupted, as {@code ServiceThread.shutdown(true)} does.
 */
final class Hurry implements AutoCloseable {
    private static final long PAUSE_MS = 20;

    private final String[] names;
    private final Thread thread = new Thread(this::run, "hurry");
    private volatile boolean done;

    /** Those whose names begin with one of {@code names}. */
    Hurry(String... names) {
        this.names = names;
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        while (!done) {
            Thread.getAllStackTraces().keySet().stream()
                .filter(one -> Arrays.stream(names).anyMatch(one.getName()::startsWith))
                .forEach(Thread::interrupt);
            try {
                TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    @Override
    public void close() throws InterruptedException {
        done = true;
        thread.join();
    }
}
