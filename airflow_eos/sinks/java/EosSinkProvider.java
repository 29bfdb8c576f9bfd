package airflow_eos;

import java.util.HashMap;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What Spark finds under the name {@code eos}. */
public final class EosSinkProvider implements StreamSinkProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "eos";
  }

  @Override
  public Sink createSink(
      SQLContext context, Map<String, String> options, Seq<String> partitions, OutputMode mode) {
    if (!EosExtensions.isLoaded(context.sparkSession())) {
      throw new IllegalArgumentException(EosExtensions.MISSING);
    }
    return new EosSink(context.sparkSession(), new HashMap<>(CollectionConverters.asJava(options)));
  }
}
