-- A product's own schema, sound, of all kinds of columns, keys and references; each test spoils it in one way.
create schema shop;
create function shop.tenant() returns uuid language sql stable
return nullif(current_setting('shop.tenant', true), '')::uuid;

create type shop.level as enum ('low', 'high');
create domain shop.code as text check (value in ('AB-1', 'CD-2'));

create table shop.accounts (
  id uuid primary key,
  slug text not null check (char_length(slug) between 3 and 40)
);
create table shop.countries (
  code char(2) primary key,
  name text not null
);
create table shop.orders (
  tenant_id uuid not null default shop.tenant() references shop.accounts (id),
  id uuid not null default gen_random_uuid(),
  number bigint generated always as identity,
  code shop.code not null,
  status text not null default 'open' check (status in ('open', 'paid')),
  level shop.level not null,
  total numeric(10, 2) not null check (total > 0),
  discount numeric(10, 2) not null,
  share smallint not null check (share between 40 and 60),
  country char(2) not null references shop.countries (code),
  reference varchar(12) not null,
  placed_on date not null,
  paid_at timestamptz,
  tags text[] not null,
  meta jsonb not null,
  digest bytea not null,
  note text not null default '',
  primary key (tenant_id, id),
  unique (tenant_id, reference),
  check (discount < total),
  check ((status = 'paid') = (paid_at is not null))
);
create unique index orders_digest on shop.orders (tenant_id, digest) where status = 'open';
create table shop.lines (
  tenant_id uuid not null,
  order_id uuid not null,
  number int not null,
  price int not null,
  twice int generated always as (price * 2) stored,
  replaces int,
  primary key (tenant_id, order_id, number),
  foreign key (tenant_id, order_id) references shop.orders (tenant_id, id) on delete cascade,
  foreign key (tenant_id, order_id, replaces) references shop.lines (tenant_id, order_id, number)
);
create table shop.events (
  tenant_id uuid not null,
  at timestamptz not null,
  kind text not null,
  primary key (tenant_id, kind, at)
) partition by list (kind);
create table shop.events_old partition of shop.events for values in ('o''ld', 'older');
create table shop.events_new partition of shop.events for values in ('new') partition by range (at);
create table shop.events_new_2020 partition of shop.events_new for values from ('2020-01-01') to ('2021-01-01');
create view shop.open_orders with (security_invoker = true) as
select id, reference, total from shop.orders where status = 'open';

alter table shop.accounts enable row level security, force row level security;
alter table shop.orders enable row level security, force row level security;
alter table shop.lines enable row level security, force row level security;
alter table shop.events enable row level security, force row level security;
alter table shop.events_old enable row level security, force row level security;
alter table shop.events_new enable row level security, force row level security;
alter table shop.events_new_2020 enable row level security, force row level security;
create policy isolation on shop.accounts using (id = shop.tenant()) with check (id = shop.tenant());
create policy isolation on shop.orders using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.lines using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.events using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.events_old using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.events_new using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
create policy isolation on shop.events_new_2020 using (tenant_id = shop.tenant()) with check (tenant_id = shop.tenant());
grant usage on schema shop to shopkeeper;
grant select, insert, update, delete on all tables in schema shop to shopkeeper;
revoke insert, update, delete on shop.countries from shopkeeper;
