package airflow_eos;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.WriteToStream;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Tells an {@link EosSink} its query while Spark analyses it, which is before Spark reads the
 * query's logs. Spark finds this class by itself where the jar is there when the session begins.
 */
public final class EosExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit>
    implements SparkSessionExtensionsProvider {
  static final String MISSING =
      "eos: the jar was added to a Spark that runs already. Expected it at the start of Spark:"
          + " --jars, spark.jars, or the classpath of the Connect server.";

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPostHocResolutionRule(session -> new Begin());
    return BoxedUnit.UNIT;
  }

  static boolean isLoaded(SparkSession session) {
    var state = ((org.apache.spark.sql.classic.SparkSession) session).sessionState();
    return CollectionConverters.asJava(state.analyzer().postHocResolutionRules()).stream()
        .anyMatch(Begin.class::isInstance);
  }

  /** A rule of the analysis that begins the query of an eos sink, and looks at nothing else. */
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
