import com.sun.management.OperatingSystemMXBean;
import java.io.DataInputStream;
import java.io.BufferedInputStream;
import java.io.FileInputStream;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes the rows of a file in one transaction with Kafka's own producer, as ProducerPerformance does
 * (asynchronous sends, no callback work), but rows with keys, and read before the clock starts.
 *
 * <p>Arguments: bootstrap servers, topic, transactional id, file, rows of warm-up, then producer
 * properties as name=value. In the file each row is: key length, key, value length, value (ints are big endian).
 * The warm-up is a transaction of its own to the topic with "-warm" added. Prints seconds and CPU seconds
 * from beginTransaction to after commitTransaction, as JSON.
 */
class WriteTransaction {
  public static void main(String[] args) throws Exception {
    var config = new Properties();
    config.put("bootstrap.servers", args[0]);
    config.put("transactional.id", args[2]);
    for (int i = 5; i < args.length; i++) {
      config.put(args[i].substring(0, args[i].indexOf('=')), args[i].substring(args[i].indexOf('=') + 1));
    }
    byte[][] rows = read(args[3]);
    var bytes = new ByteArraySerializer();
    var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    try (var producer = new KafkaProducer<byte[], byte[]>(config, bytes, bytes)) {
      producer.initTransactions();
      write(producer, args[1] + "-warm", rows, Integer.parseInt(args[4]));
      long cpu = system.getProcessCpuTime();
      long start = System.nanoTime();
      write(producer, args[1], rows, rows.length / 2);
      double seconds = (System.nanoTime() - start) / 1e9;
      double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
      System.out.println("{\"seconds\":" + seconds + ",\"cpu_seconds\":" + cpuSeconds + "}");
    }
  }

  private static void write(KafkaProducer<byte[], byte[]> producer, String topic, byte[][] rows, int count) {
    producer.beginTransaction();
    for (int i = 0; i < count; i++) {
      producer.send(new ProducerRecord<>(topic, rows[2 * i], rows[2 * i + 1]));
    }
    producer.commitTransaction();
  }

  private static byte[][] read(String file) throws Exception {
    try (var in = new DataInputStream(new BufferedInputStream(new FileInputStream(file), 1 << 20))) {
      byte[][] rows = new byte[2 * in.readInt()][];
      for (int i = 0; i < rows.length; i++) {
        rows[i] = in.readNBytes(in.readInt());
      }
      return rows;
    }
  }
}
