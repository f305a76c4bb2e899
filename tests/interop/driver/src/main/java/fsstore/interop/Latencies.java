package fsstore.interop;

import com.google.gson.JsonObject;
import java.util.Arrays;

/** Durations in nanoseconds, kept one by one so that percentiles are exact. Thread safety: all methods lock. */
final class Latencies {
    private long[] values = new long[1 << 16];
    private int count;

    synchronized void add(long nanoseconds) {
        if (count == values.length) {
            values = Arrays.copyOf(values, 2 * count);
        }
        values[count++] = nanoseconds;
    }

    synchronized void clear() {
        count = 0;
    }

    /** Count, p50, p99, p99.9 and maximum, in microseconds. */
    synchronized JsonObject figures() {
        long[] sorted = Arrays.copyOf(values, count);
        Arrays.sort(sorted);
        JsonObject figures = new JsonObject();
        figures.addProperty("count", count);
        figures.addProperty("p50_us", percentile(sorted, 0.50));
        figures.addProperty("p99_us", percentile(sorted, 0.99));
        figures.addProperty("p999_us", percentile(sorted, 0.999));
        figures.addProperty("max_us", percentile(sorted, 1.0));
        return figures;
    }

    private static double percentile(long[] sorted, double share) {
        if (sorted.length == 0) {
            return 0;
        }
        int index = (int) Math.ceil(share * sorted.length) - 1;
        return sorted[Math.max(0, index)] / 1000.0;
    }
}
