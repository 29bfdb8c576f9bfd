package org.apache.iceberg.rest;

import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Apache Iceberg's own REST catalog over one of its catalogs, on the loopback interface: its own main
 * class listens on all of them.
 *
 * <p>Arguments: the port, then properties of the catalog, as {@code name=value}. With {@code
 * include-credentials=true} what clients need for the bucket comes with each table.
 *
 * <p>Who asks for {@code snapshots=refs} gets those alone, as the specification has it: the class of
 * Iceberg's tests gives all.
 */
class ServeIcebergCatalog {
  public static void main(String[] args) throws Exception {
    var properties = new HashMap<String, String>();
    for (int at = 1; at < args.length; at++) {
      var pair = args[at].split("=", 2);
      properties.put(pair[0], pair[1]);
    }
    var catalog = CatalogUtil.buildIcebergCatalog("backend", properties, new Configuration());
    var context = new RESTCatalogServer.CatalogContext(catalog, properties);
    var servlet = new RESTCatalogServlet(new Adapter(context));
    var handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    handler.addServlet(new ServletHolder(servlet), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }

  private static class Adapter extends RESTServerCatalogAdapter {
    Adapter(RESTCatalogServer.CatalogContext context) {
      super(context);
    }

    @Override
    protected <T extends RESTResponse> T execute(
        HTTPRequest request,
        Class<T> type,
        Consumer<ErrorResponse> onError,
        Consumer<Map<String, String>> headers) {
      T found = super.execute(request, type, onError, headers);
      if (!"refs".equals(request.queryParameters().get("snapshots"))
          || !(found instanceof LoadTableResponse table)) {
        return found;
      }
      var metadata =
          TableMetadata.buildFrom(table.tableMetadata())
              .withMetadataLocation(table.metadataLocation())
              .suppressHistoricalSnapshots()
              .discardChanges()
              .build();
      return type.cast(
          LoadTableResponse.builder()
              .withTableMetadata(metadata)
              .addAllConfig(table.config())
              .addAllCredentials(table.credentials())
              .build());
    }
  }
}
