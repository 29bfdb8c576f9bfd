package org.apache.kafka.common.utils;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Supplier;

/**
 * Kafka's clock, as far from the machine's as a file says: it stands before Kafka's own class of
 * this name on the class path. The file holds milliseconds and is read every 20 ms, so that the
 * clock can be set while the broker runs, as an administrator or NTP does.
 */
class SystemTime implements Time {
    private static final SystemTime SYSTEM_TIME = new SystemTime();

    private volatile long ahead = 0;

    private SystemTime() {
        Path file = Path.of(System.getenv("EOS_CLOCK_FILE"));
        Thread setter = new Thread(() -> follow(file), "clock");
        setter.setDaemon(true);
        ahead = read(file);
        setter.start();
    }

    static SystemTime getSystemTime() {
        return SYSTEM_TIME;
    }

    private static long read(Path file) {
        try {
            return Long.parseLong(Files.readString(file).trim());
        } catch (Exception gone) {
            throw new IllegalStateException("no clock in " + file, gone);
        }
    }

    private void follow(Path file) {
        while (true) {
            sleep(20);
            ahead = read(file);
        }
    }

    @Override
    public long milliseconds() {
        return System.currentTimeMillis() + ahead;
    }

    @Override
    public long nanoseconds() {
        return System.nanoTime();
    }

    @Override
    public void sleep(long ms) {
        Utils.sleep(ms);
    }

    @Override
    public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs)
            throws InterruptedException {
        synchronized (obj) {
            while (!condition.get()) {
                long now = milliseconds();
                if (now >= deadlineMs) {
                    throw new org.apache.kafka.common.errors.TimeoutException("not in time");
                }
                obj.wait(deadlineMs - now);
            }
        }
    }
}
