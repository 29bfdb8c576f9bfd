import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Sends a record for each key on standard input (a line each, Base64) with Kafka's own producer.
 *
 * <p>Arguments: bootstrap servers, topic. Prints a line a key: its murmur2 hash, the partition.
 */
class ProduceKeys {
  public static void main(String[] args) throws Exception {
    var bytes = new ByteArraySerializer();
    var hashes = new ArrayList<Integer>();
    var sent = new ArrayList<Future<RecordMetadata>>();
    var config = Map.<String, Object>of("bootstrap.servers", args[0], "linger.ms", "50");
    try (var producer = new KafkaProducer<byte[], byte[]>(config, bytes, bytes);
        var lines = new BufferedReader(new InputStreamReader(System.in))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        byte[] key = Base64.getDecoder().decode(line);
        hashes.add(Utils.murmur2(key));
        sent.add(producer.send(new ProducerRecord<>(args[1], key, new byte[0])));
      }
    }
    var out = new StringBuilder();
    for (int i = 0; i < hashes.size(); i++) {
      out.append(hashes.get(i)).append(' ').append(sent.get(i).get().partition()).append('\n');
    }
    System.out.print(out);
  }
}
