# Sidekiq on Ruby. `ruby sidekiq.rb work THREADS` is a worker, `ruby sidekiq.rb drive` obeys the bench as inside.py does.
#
# Two worker processes, as a Ruby process uses one core: ten threads each, Sidekiq's default and the best for jobs that
# do nothing, 100 for jobs that wait. The free edition takes a job out of Redis as it starts: one that runs while its
# process dies is lost, and there are no results, so there is no round trip. `bulk` is push_bulk.
require "json"
require ARGV[0] == "work" ? "sidekiq/cli" : "sidekiq"

SHIFT, HEAD, ROOM, PROBES = 24, 16, 1 << 21, 1 << 16
PLACES = (1 << SHIFT) - 1
BATCH, IO_SECONDS = 1000, 0.010

Sidekiq.logger.level = Logger::ERROR
Sidekiq.configure_server { |config| config.redis = { url: ENV.fetch("BENCH_URL"), size: ARGV[1].to_i + 5 } }
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch("BENCH_URL"), size: 5 } }

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)

# Marks are written by a thread beside the jobs, at most once a millisecond: Ruby cannot map a file into memory.
class Book
  def initialize(name, size)
    path = File.join(ENV.fetch("BENCH_MARKS"), "#{name}-#{Process.pid}")
    @file = File.open(path, File::RDWR | File::CREAT | File::BINARY)
    @file.truncate(size)
    @bytes = ("\0" * size).b
    @low, @high, @due = size, 0, Thread::Queue.new
    Thread.new { loop { write if @due.pop } }
  end

  attr_reader :bytes

  def set(at, value) = @bytes[at, 8] = [value].pack("q<")

  def touch(from, to)
    @low = from if from < @low
    @high = to if to > @high
    @due << true if @due.empty?
  end

  private

  def write
    sleep 0.001
    low, high, @low, @high = @low, @high, @bytes.bytesize, 0
    @file.pwrite(@bytes[low...high], low) if low < high
    @file.pwrite(@bytes[0, HEAD], 0)
  end
end

BOOKS, DELAYS, OPENING = {}, {}, Mutex.new

def begin_at(n)
  phase = n >> SHIFT
  BOOKS[phase] || OPENING.synchronize do
    BOOKS[phase] ||= Book.new("marks-#{phase}", HEAD + ROOM).tap { |book| book.set(0, now) }
  end
end

def mark(n)
  book, at = begin_at(n), HEAD + (n & PLACES)
  book.bytes.setbyte(at, book.bytes.getbyte(at) + 1)
  book.set(8, now)
  book.touch(at, at + 1)
end

def note(n, payload)
  at, phase, place = now, n >> SHIFT, (n & PLACES) * 8
  book = DELAYS[phase] || OPENING.synchronize { DELAYS[phase] ||= Book.new("delays-#{phase}", PROBES * 8) }
  book.set(place, at - payload[0, 20].to_i)
  book.touch(place, place + 8)
end

class Noop
  include Sidekiq::Worker
  sidekiq_options queue: "bench"
  def perform(n, _payload) = mark(n)
end

class Io
  include Sidekiq::Worker
  sidekiq_options queue: "bench"
  def perform(n, _payload)
    begin_at(n)
    sleep IO_SECONDS
    mark(n)
  end
end

class Probe
  include Sidekiq::Worker
  sidekiq_options queue: "bench"
  def perform(n, payload) = note(n, payload)
end

TASKS = { "noop" => Noop, "io" => Io, "probe" => Probe }.freeze
WAYS = {
  "blocking" => lambda do |task, first, count, payload|
    count.times { |i| TASKS[task].perform_async(first + i, payload) }
  end,
  "bulk" => lambda do |task, first, count, payload|
    (first...(first + count)).each_slice(BATCH) do |part|
      Sidekiq::Client.push_bulk("class" => TASKS[task], "args" => part.map { |n| [n, payload] })
    end
  end
}.freeze

def enqueue(how, task, first, count, size)
  started, cpu = now, Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  WAYS[how == "fill" ? "bulk" : how].call(task, first, count, "x" * size)
  { seconds: (now - started) / 1e9, cpu: Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - cpu, count: count }
end

def probe(first, count, gap)
  count.times do |i|
    sleep gap * (0.5 + i * 0.618034 % 1)
    Probe.perform_async(first + i, now.to_s.rjust(20, "0") + "x" * 70)
  end
  { count: count }
end

def load_evenly(task, first, rate, seconds)
  started, sent = now, 0
  while (passed = (now - started) / 1e9) < seconds
    due = (rate * passed).to_i - sent
    if due.positive?
      enqueue("bulk", task, first + sent, due, 90)
      sent += due
    end
    sleep 0.01
  end
  { count: sent, seconds: passed }
end

def obey(c)
  case c["do"]
  when "enqueue" then enqueue(*c.values_at("how", "task", "first", "count", "size"))
  when "probe" then probe(*c.values_at("first", "count", "gap"))
  when "load" then load_evenly(*c.values_at("task", "first", "rate", "seconds"))
  end
end

def drive
  $stdout.sync = true
  puts({ modes: WAYS.keys, trips: false }.to_json)
  $stdin.each_line { |line| puts obey(JSON.parse(line)).to_json }
end

def work(threads)
  cli = Sidekiq::CLI.instance
  cli.parse(["-r", __FILE__, "-q", "bench", "-c", threads, "-e", "production"])
  cli.run(boot_app: false)
end

ARGV[0] == "work" ? work(ARGV[1]) : drive
