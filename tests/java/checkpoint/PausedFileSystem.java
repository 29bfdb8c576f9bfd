import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Options.ChecksumOpt;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local disk as Hadoop's FileContext has it, but that a test can hold it at two places: before a file is
 * created, and between the last look of a rename and the rename itself. Whoever comes to such a step first takes
 * the file "create" or "rename" from the folder "paused.folder" of the configuration: it becomes "held", and as
 * long as that is there the step waits.
 */
public class PausedFileSystem extends DelegateToFileSystem {
  private final Path folder;

  public PausedFileSystem(URI uri, Configuration configuration) throws Exception {
    super(uri, new Renaming(Path.of(configuration.get("paused.folder"))), configuration, "file", false);
    folder = Path.of(configuration.get("paused.folder"));
  }

  @Override
  public FSDataOutputStream createInternal(
      org.apache.hadoop.fs.Path path,
      EnumSet<CreateFlag> flags,
      FsPermission permission,
      int buffer,
      short replication,
      long blockSize,
      Progressable progress,
      ChecksumOpt checksum,
      boolean createParent)
      throws IOException {
    pause(folder, "create");
    return super.createInternal(
        path, flags, permission, buffer, replication, blockSize, progress, checksum, createParent);
  }

  private static void pause(Path folder, String step) throws IOException {
    Path held = folder.resolve("held");
    try {
      Files.move(folder.resolve(step), held);
    } catch (NoSuchFileException error) {
      return;
    }
    while (Files.exists(held)) {
      try {
        Thread.sleep(5);
      } catch (InterruptedException error) {
        throw new IOException(error);
      }
    }
  }

  private static class Renaming extends RawLocalFileSystem {
    private final Path folder;

    Renaming(Path folder) {
      this.folder = folder;
    }

    @Override
    public boolean rename(org.apache.hadoop.fs.Path source, org.apache.hadoop.fs.Path target)
        throws IOException {
      pause(folder, "rename");
      return super.rename(source, target);
    }
  }
}
