// Follows the tasks of an exported schedule in SimGrid, on an exported platform.
//
//   follower GRAPH PLATFORM.xml [SimGrid options]
//
// GRAPH is text, written by simgrid_replay.py:
//
//   ranks tasks
//   host                                                   one line a rank
//   rank kind amount peer tag stream count need need ...   one line a task, those of a rank in order
//
// Kind is c (a calculation of `amount` seconds), s or r (a send or a receive of `amount` bytes).  Needs are positions of
// tasks of the rank.  Each task is an actor: it waits for its needs, a calculation then for its stream of the rank, and
// a message for its other end.
//
// Prints JSON: end of each rank [s].

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Task {
  int rank;
  char kind;
  double amount;
  int peer;
  long tag;
  int stream;
  std::vector<int> needs;
  sg4::SemaphorePtr done;
};

static std::vector<Task> tasks;
static std::vector<long> first;                              // of each rank
static std::vector<double> finish;                           // of each rank
static std::map<std::pair<int, int>, sg4::MutexPtr> streams;  // of each rank

static std::string channel(int from, int to, long tag) {
  return std::to_string(from) + ">" + std::to_string(to) + ":" + std::to_string(tag);
}

static void follow(long number) {
  Task& task = tasks[number];
  for (int need : task.needs) {  // a semaphore of one token, which goes round among those that wait
    auto done = tasks[first[task.rank] + need].done;
    done->acquire();
    done->release();
  }
  static int token;
  if (task.kind == 'c') {
    auto stream = streams[{task.rank, task.stream}];
    stream->lock();
    sg4::this_actor::sleep_for(task.amount);
    stream->unlock();
  } else if (task.kind == 's') {
    sg4::Mailbox::by_name(channel(task.rank, task.peer, task.tag))->put(&token, static_cast<uint64_t>(task.amount));
  } else {
    sg4::Mailbox::by_name(channel(task.peer, task.rank, task.tag))->get<int>();
  }
  finish[task.rank] = std::max(finish[task.rank], sg4::Engine::get_clock());
  task.done->release();
}

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  std::ifstream file(argc > 2 ? argv[1] : "");
  long ranks, count;
  if (!(file >> ranks >> count)) {
    std::cerr << "follower: a graph and a platform are needed\n";
    return 2;
  }
  engine.load_platform(argv[2]);
  std::vector<sg4::Host*> hosts;
  for (long rank = 0; rank < ranks; ++rank) {
    std::string name;
    file >> name;
    hosts.push_back(sg4::Host::by_name(name));
  }
  first.assign(ranks, -1);
  finish.assign(ranks, 0.0);
  for (long number = 0; number < count; ++number) {
    Task task;
    long needs;
    file >> task.rank >> task.kind >> task.amount >> task.peer >> task.tag >> task.stream >> needs;
    task.needs.resize(needs);
    for (int& need : task.needs)
      file >> need;
    if (first[task.rank] < 0)
      first[task.rank] = number;
    task.done = sg4::Semaphore::create(0);
    streams.try_emplace({task.rank, task.stream}, sg4::Mutex::create());
    tasks.push_back(std::move(task));
  }
  if (!file) {
    std::cerr << "follower: the file is truncated\n";
    return 2;
  }
  for (long number = 0; number < count; ++number)
    sg4::Actor::create("task " + std::to_string(number), hosts[tasks[number].rank], follow, number);
  engine.run();
  for (const Task& task : tasks)
    if (!task.done->get_capacity()) {
      std::cerr << "follower: tasks wait for each other\n";
      return 1;
    }
  std::printf("{\"finish_s\": [");
  for (long rank = 0; rank < ranks; ++rank)
    std::printf("%s%.17g", rank ? ", " : "", finish[rank]);
  std::printf("]}\n");
  return 0;
}
