package airflow_eos;

import java.util.HashMap;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.WriteToStream;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** What Spark finds under the name {@code eos}: a sink that is told its query by the analysis. */
public final class EosFormat extends AbstractFunction1<SparkSessionExtensions, BoxedUnit>
    implements SparkSessionExtensionsProvider, StreamSinkProvider, DataSourceRegister {

  @Override public String shortName() { return "eos"; }

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPostHocResolutionRule(session -> new Begin());
    return BoxedUnit.UNIT;
  }

  @Override
  public Sink createSink(
      SQLContext context, Map<String, String> options, Seq<String> partitions, OutputMode mode) {
    SparkSession session = (SparkSession) context.sparkSession();
    var rules = session.sessionState().analyzer().postHocResolutionRules();
    if (CollectionConverters.asJava(rules).stream().noneMatch(Begin.class::isInstance)) {
      throw new IllegalArgumentException(
          "eos: its jar came to a Spark that runs already. Expected it where Spark is started:"
              + " --jars or spark.jars of the driver, or of the Connect server.");
    }
    var told = new HashMap<>(CollectionConverters.asJava(options));
    if (!partitions.isEmpty()) { told.put("partitionby", partitions.mkString(",")); } // is refused
    return new EosSink(session, told);
  }

  /** A rule that lets the query of an eos sink begin, and looks at nothing else. */
  private static final class Begin extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      if (plan instanceof WriteToStream query && query.sink() instanceof EosSink sink) {
        return sink.begin(query);
      }
      return plan;
    }
  }
}
